"""Every error that headrace raises.

    HeadraceError
    ├── InvalidInput          what a user handed in cannot be used as it is
    │   ├── InvalidWorkflow       a workflow file or event: a cycle, an unknown parent, a negative runtime, …
    │   ├── InvalidCluster        a node file or a node's specification
    │   ├── InvalidConfiguration  settings, rules, an unknown policy
    │   └── InvalidRecord         bytes in a topic that are no record of ours
    ├── TooDirty              a log that must not be learnt from
    ├── UnusableWeights       a set of weights that must not decide
    ├── NotFetched            jars that are needed once on a machine cannot be had
    ├── RayUnavailable        Ray cannot be had, or has lost work too often
    ├── BrokerError           Kafka cannot be had, or not in the state that is needed
    └── StateLost             the state of a partition cannot be restored

A message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """The root of headrace's errors; `str()` of it is fit for a user's eyes."""


class InvalidInput(HeadraceError):
    """What a user handed in cannot be used as it is.

    `where` names the file, event or field, `problem` what is wrong with it, `remedy` what to do.
    """

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, str, str]]:
        return type(self), (self.where, self.problem, self.remedy)


class InvalidWorkflow(InvalidInput):
    """A workflow that cannot be run: the message names the file or workflow, and the task."""


class InvalidCluster(InvalidInput):
    """A node file, or a node's specification, that describes no usable machine."""


class InvalidConfiguration(InvalidInput):
    """A setting, a rule or a name of a policy that cannot be used."""


class InvalidRecord(InvalidInput):
    """Bytes in a topic that are no record of ours. `reason` is one of a closed set, fit for a metric's label."""

    def __init__(self, where: str, problem: str, remedy: str = "", reason: str = "undecodable") -> None:
        super().__init__(where, problem, remedy)
        self.reason = reason


class TooDirty(HeadraceError):
    """A log that must not be learnt from. `reasons` says why, each with its numbers."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__(
            f"this log must not be learnt from: {'; '.join(reasons)}; mend what writes it, take another time, "
            "or raise the limit (`headrace quality` has examples)"
        )

    def __reduce__(self) -> tuple[type[TooDirty], tuple[tuple[str, ...]]]:
        return type(self), (self.reasons,)


class UnusableWeights(HeadraceError):
    """A set of weights that must not decide: wrong digest, other features, outputs that are not finite."""


class NotFetched(HeadraceError):
    """Jars that are needed once on a machine cannot be fetched, or not be kept."""


class RayUnavailable(HeadraceError):
    """A Ray cluster cannot be had, cannot do our work, or has lost it too often."""


class BrokerError(HeadraceError):
    """Kafka cannot be had, or is not in the state that is needed."""


class StateLost(HeadraceError):
    """The state of a partition cannot be restored from its topics."""


class HistoryLost(HeadraceError):
    """What a replay needs is no longer in its topics, or not in the archive."""
