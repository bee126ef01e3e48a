"""What the Python tests share."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

# Tests fork this process: a pool of threads would not survive that.
torch.set_num_threads(1)
