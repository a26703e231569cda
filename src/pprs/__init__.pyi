# The list of public names. `pprs/__init__.py` reads it, and imports a name when it is first used.
from . import data as data
from . import metrics as metrics
from . import noise as noise
from . import partition as partition
from .adaptation import adapt as adapt
from .audit import audit_run as audit_run
from .certificate import Certificate as Certificate
from .classifier import SmoothedClassifier as SmoothedClassifier
from .data import ImageSet as ImageSet
from .data import open_dataset as open_dataset
from .dataset import certify_dataset as certify_dataset
from .errors import PprsError as PprsError
from .model import Model as Model
from .model import load_model as load_model
from .noise import Exponential as Exponential
from .noise import Gaussian as Gaussian
from .noise import PowerLaw as PowerLaw
from .partition import Blur as Blur
from .partition import Felzenszwalb as Felzenszwalb
from .partition import Grid as Grid
from .partition import Partition as Partition
from .partition import Quickshift as Quickshift
from .partition import Shifts as Shifts
from .partition import Slic as Slic
from .partition import Soft as Soft
from .report import write_report as write_report
from .reproduction import reproduce as reproduce
from .runners import Processes as Processes
from .runs import Run as Run
from .runs import open_run as open_run
from .sampling import Sampling as Sampling
from .segmentation import certify_segmentation as certify_segmentation
from .tuning import tune as tune
from .verification import verify_run as verify_run

__version__: str
