#!/usr/bin/env bash
# The runs behind partitions.md: clean-trained networks on real data, partitions tuned on training images, and 200 test
# images each. PPRS_DATA names the folder that holds mnist, fashion-mnist and cifar10. Takes about an hour and a half on
# two cores.
set -euo pipefail
cd "${1:-.}"
train() { [ -f "$1.safetensors" ] || pprs train --data "$1" --out "$1.safetensors" "${@:2}"; }
train mnist --epochs 4
train fashion-mnist --epochs 8
train cifar10 --epochs 14 --width 24
for data in ${DATA:-mnist cifar10 fashion-mnist}; do
  for sigma in ${SIGMAS:-0.25 0.5}; do
    name=$data-$sigma
    pprs tune --model $data.safetensors --data $data --split train --stride 50 --limit 1000 --sigma $sigma \
      --families none,blur,superpixels --budget "${BUDGET:-4m}" --out tune/$name
    for family in none blur superpixels; do
      partition=$(python -c "import json, sys
print(next(f['partition'] for f in json.load(open('tune/$name/tune.json'))['finals'] if f['family'] == '$family'))")
      pprs certify --model $data.safetensors --data $data --stride 50 --limit 200 --sigma $sigma --n 1000 \
        --partition "$partition" --out runs/$name-$family
      pprs export runs/$name-$family --format parquet --out rows/$name-$family.parquet
    done
    pprs report runs/$name-none runs/$name-blur runs/$name-superpixels --out $name.html
  done
done
