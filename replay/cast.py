"""Who decided, by what a history tells of the weights in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from policy.canary import Canary
from schemas.steps import Uses
from streams.installation import require_broker
from streams.model_topic import ModelTopic
from streams.policies import PolicySettings, Roles, looking_ahead
from streams.registry import codec_for

if TYPE_CHECKING:
    from policy.actor import Actor
    from streams.config import Settings

Load = Callable[[str], "Actor"]
"""The actor of a version. Raises HeadraceError where it cannot be had."""


class Cast:
    """The actors of a history, each loaded once.

    own   who decides where the history names nobody else: what the worker's settings say
    load  all others
    """

    def __init__(self, own: Roles, load: Load, settings: PolicySettings | None = None) -> None:
        """settings  as the worker's, where decisions were looked at twice"""
        self._settings = settings or PolicySettings()
        self._own = own
        self._load = load
        self._actors: dict[str, Actor] = {own.actor.version: own.actor} if own.actor else {}

    def of(self, uses: Uses | None) -> Roles:
        """The roles under these weights."""
        if uses is None:
            return self._own
        stable = self._own
        if uses.stable and (self._own.actor is None or uses.stable != self._own.actor.version):
            actor = self._actor(uses.stable)
            stable = Roles(looking_ahead(actor.policy(), self._settings), actor)
        if not uses.canary:
            return stable
        actor = self._actor(uses.canary)
        return Roles(
            stable.policy,
            stable.actor,
            Canary(looking_ahead(actor.policy(), self._settings), uses.share, uses.classes),
            actor,
        )

    def _actor(self, version: str) -> Actor:
        if version not in self._actors:
            self._actors[version] = self._load(version)
        return self._actors[version]


def published(settings: Settings) -> Load:
    """Loads from the topic `models`, to run as the settings say."""

    def load(version: str) -> Actor:
        from policy.actor import Actor, ActorSettings

        require_broker(settings)
        with ModelTopic(settings.kafka, settings.topics, codec_for(settings.kafka)) as models:
            weights = models.weights(models.found(version).version)
        chosen = settings.policy
        return Actor(weights, ActorSettings(device=chosen.device, temperature=chosen.temperature, synchronous=False))

    return load
