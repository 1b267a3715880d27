"""Runs beside the tests, where MaxText is: its own count of TFLOP a step and device, as JSON, for `MODEL:SEQUENCE[:KEY=VALUE...]`."""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils


def counted(word: str) -> list[float]:
    model, sequence, *more = word.split(":")
    config = pyconfig.initialize(
        [
            "flops",
            os.path.join(os.path.dirname(os.path.dirname(maxtext_utils.__file__)), "configs", "base.yml"),
            "run_name=flops",
            f"model_name={model}",
            f"max_target_length={sequence}",
            "per_device_batch_size=1",
            "enable_checkpointing=false",
            "skip_jax_distributed_system=true",
            "dataset_type=synthetic",
            *more,
        ]
    )
    return [float(number) for number in maxtext_utils.calculate_tflops_training_per_device(config, log=False)]


sys.stdout.write("\nFLOPS " + json.dumps({word: counted(word) for word in sys.argv[1:]}) + "\n")
