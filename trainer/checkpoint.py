"""Where a training stands, beside the folder of its weights: who is stopped goes on from there."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from schemas.errors import InvalidConfiguration


class Checkpoint:
    """The state of one training, in a file of its own.

    out       folder of the weights; the file lies beside it
    settings  all that the course of the training depends on
    """

    def __init__(self, out: Path, settings: object) -> None:
        self.path = out.with_name(f"{out.name}.checkpoint")
        self._settings = settings

    def read(self) -> Any:
        """What was written by a training of the same settings; None: nothing.

        Raises InvalidConfiguration for one of other settings.
        """
        try:
            settings, state = pickle.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except Exception as error:  # pickle raises whatever the bytes make it stumble over
            raise InvalidConfiguration(str(self.path), f"cannot be read: {error!r}", "remove it") from error
        if settings != self._settings:
            raise InvalidConfiguration(
                str(self.path), "is of a training with other settings", "remove it, or give another folder"
            )
        return state

    def write(self, state: object) -> None:
        """Keep it, as a whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        part.write_bytes(pickle.dumps((self._settings, state)))
        part.replace(self.path)

    def remove(self) -> None:
        """The training is over."""
        self.path.unlink(missing_ok=True)
