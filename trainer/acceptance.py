"""Whether new weights may take the place of those that they were trained from."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.errors import UnusableWeights

START = "its start"
"""The rival's name, in an evaluation, of the weights that training began with."""


def refuse_worse(evaluation: Mapping[str, float]) -> None:
    """Raises UnusableWeights where an evaluation is worse than the start's, beyond its 95 % interval.

    evaluation  "SETUP, reward over its start" and, with ", margin", half of its interval
    """
    for key, gain in evaluation.items():
        if key.endswith(f"over {START}") and gain + evaluation[f"{key}, margin"] < 0:
            raise UnusableWeights(
                f"{key}: {gain:+.4f} ± {evaluation[f'{key}, margin']:.4f}: worse than what they were trained from; "
                "nothing was written: train longer, or keep what you have"
            )
