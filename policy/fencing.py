"""Which placements of a partition are in effect: those of its newest owner."""

from __future__ import annotations

from schemas.records import Outcome, Placement


class Fence:
    """Follows one partition of the placements topic.

    A worker that takes a partition over first writes an owner record; that record's offset is the epoch of all it
    decides. What an earlier owner still writes behind it has a smaller epoch, and is void for everybody.
    """

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch

    def admits(self, placement: Placement, offset: int) -> bool:
        """Whether the placement at this offset is in effect. Call it for every record, in order."""
        if placement.outcome == Outcome.OWNER:
            self.epoch = max(self.epoch, offset)
            return False
        self.epoch = max(self.epoch, placement.epoch)
        return placement.epoch == self.epoch
