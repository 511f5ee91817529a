"""Trainings on two devices, of one process or of two that run this file."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_layers.training import train, train_links


def train_cases(cases: dict[str, Any]) -> dict[str, Any]:
    """Return losses and predictions of the trainings by name."""
    results = {}
    for name, (dataset, config) in cases.items():
        result: Any = (train_links if name == "links" else train)(dataset, config, devices=2)
        if name == "links":
            losses, outputs = result.losses, result.trained.table(dataset)["probability"]
        else:
            losses = result.run.train_loss
            outputs = np.asarray(result.trained.predict(dataset, devices=2))
        results[name] = losses.tolist(), outputs.tolist()
    return results


if __name__ == "__main__":
    jax.distributed.initialize()
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    print("trained " + json.dumps(train_cases(cases)), flush=True)
