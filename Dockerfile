# The image of a Ray cluster's head and workers, as in docs/clusters.md. Build it in the root of the repository:
#
#   docker build --tag YOUR/pprs .
#
# torch's default builds for Linux bring CUDA's libraries along. For machines without a GPU, name the index of torch's
# CPU builds (see torch's page on installation), which makes the image several GB smaller:
#
#   docker build --tag YOUR/pprs --build-arg TORCH_INDEX=URL .
#
# The driver and all workers must have the same image: rows depend on the versions of the packages.

FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml MANIFEST.in README.md LICENSE constraints.txt ./
COPY src src
RUN PIP_CONSTRAINT=/source/constraints.txt pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG TORCH_INDEX=""
# The probes of KubeRay call wget.
RUN apt-get update && apt-get install --yes --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(ls /wheels/*.whl)[ray,onnx,hub,urls,report]"

# For GPUs, leave TORCH_INDEX empty and uncomment these lines. The nodes need NVIDIA's driver and container toolkit.
# ENV NVIDIA_VISIBLE_DEVICES=all
# ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Nothing needs root. Compiled kernels and fetched models are kept in the home folder.
RUN useradd --create-home pprs
USER pprs
WORKDIR /home/pprs
ENV RAY_USAGE_STATS_ENABLED=0 OMP_WAIT_POLICY=PASSIVE
RUN pprs --version
