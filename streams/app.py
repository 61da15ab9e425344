"""The composition root of a worker: settings in, a running Faust app out."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any

import faust
from faust.tables.manager import TableManager
from yarl import URL

from policy.constraints import Constraints
from policy.heuristics import heuristic
from schemas import topics as catalogue
from schemas.codec import Codec
from schemas.errors import InvalidConfiguration
from streams import policies
from streams.agents import Trunk, add_agents
from streams.config import Settings
from streams.health import HealthServer
from streams.kafka import Publisher, member_settings
from streams.model_topic import ModelTopic
from streams.models import Models
from streams.registry import codec_for
from streams.topic_admin import check_topics
from streams.transport import ChunkTransport
from streams.worker import Worker

if TYPE_CHECKING:
    from policy.actor import Actor

try:
    import uvloop
except ImportError:  # there is none for Windows
    uvloop = None

log = logging.getLogger("headrace.app")

CHUNKS_BUFFERED = 8


class NoTables(TableManager):
    """Faust gives tables a second to declare themselves; there are none here to wait for."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class DirectorylessApp(faust.App):
    """Faust keeps tables in a directory below the working one; without tables nothing needs to be written."""

    def _create_directories(self) -> None:
        pass


def run_worker(settings: Settings) -> int:
    """Run until a signal; returns the exit code. Raises HeadraceError for what is wrong before the start."""
    signal.signal(signal.SIGTERM, _end_at_once)  # until Faust puts its own in place
    check_topics(settings.kafka, settings.topics)
    worker, app, health = build(settings)
    log.info(
        "worker.starting",
        extra={
            "policy": settings.policy.name,
            "bootstrap": settings.kafka.bootstrap_servers,
            "port": health.port,
            "group": settings.worker.group,
        },
    )
    worker.watch_over(app)
    if uvloop is not None:
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    runner = faust.Worker(
        app, quiet=True, loglevel="INFO", logging_config=None, override_logging=False, redirect_stdouts=False
    )
    runner.spinner = None  # it writes control characters between the log's lines
    try:
        runner.execute_from_commandline()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        health.close()
    return 0


def _end_at_once(*_: object) -> None:
    raise SystemExit(0)


def build(settings: Settings) -> tuple[Worker, faust.App, HealthServer]:
    """The worker's parts, put together."""
    codec = codec_for(settings.kafka)
    actor = policies.build_actor(settings.policy, synchronous=False) if settings.policy.name == "actor" else None
    policies.announce(settings.policy, actor)
    fallback = heuristic(settings.policy.fallback)
    publisher = Publisher(settings.kafka, settings.topics, codec)
    worker = Worker(settings.worker, settings.kafka, settings.topics, settings.state, codec, publisher)
    publisher.on_failure = worker.fail
    models = _models(settings, codec, actor, publisher, worker)
    worker.trunk = Trunk(
        worker.find,
        publisher,
        codec,
        models,
        policies.Guard(fallback, settings.policy.deadline_ms, models.failed),
        Constraints(settings.policy.node_filter_rules),
        settings.decide,
    )
    app = _app(settings, worker, models)
    health = HealthServer(settings.worker.host, settings.worker.port, worker.is_alive, worker.is_ready)
    return worker, app, health


def _models(settings: Settings, codec: Codec, actor: Actor | None, publisher: Publisher, worker: Worker) -> Models:
    """Who decides for each pool. Where a heuristic is set, it does, whatever the topics say."""
    policy = actor.policy() if actor else heuristic(settings.policy.name)
    base = policies.Roles(policies.looking_ahead(policy, settings.policy), actor)
    source = ModelTopic(settings.kafka, settings.topics, codec) if actor else None
    models = Models(settings.policy, base, settings.topics, publisher, worker.find, source, worker.owner)
    models.begin()
    return models


def _app(settings: Settings, worker: Worker, models: Models) -> faust.App:
    if not settings.kafka.bootstrap_servers:
        raise InvalidConfiguration(
            "kafka.bootstrap_servers", "is empty", "name the brokers, or let 'headrace up' start one"
        )
    urls = [URL(f"kafka://{server.strip()}") for server in settings.kafka.bootstrap_servers.split(",")]
    group, instance, timeout_s = settings.worker.group, settings.worker.instance, settings.worker.session_timeout_s
    app = DirectorylessApp(
        group,
        broker=urls,
        store="memory://",
        TableManager=NoTables,
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        autodiscover=False,
        broker_session_timeout=timeout_s,
        broker_commit_interval=1.0,
        stream_buffer_maxsize=CHUNKS_BUFFERED,
        stream_wait_empty=False,
        table_standby_replicas=0,
    )
    member = {**member_settings(settings.kafka, group, instance, timeout_s), "stats_cb": worker.on_statistics}
    app.transport = ChunkTransport(urls, app=app, settings=member, fail=worker.fail)
    assert worker.trunk is not None
    add_agents(app, worker.trunk, settings.topics.full_name, worker.fail)
    workflow_topic = settings.topics.full_name(catalogue.WORKFLOW_SUBMITTED)

    async def on_assigned(_: Any, assigned: Any, **__: Any) -> None:
        await worker.on_assigned({tp.partition for tp in assigned if tp.topic == workflow_topic})

    async def on_revoked(_: Any, revoked: Any, **__: Any) -> None:
        await worker.on_revoked({tp.partition for tp in revoked})

    async def on_shutdown(_: Any, **__: Any) -> None:
        models.stop()
        await worker.stop()

    app.on_partitions_assigned.connect(on_assigned, weak=False)
    app.on_partitions_revoked.connect(on_revoked, weak=False)
    app.on_before_shutdown.connect(on_shutdown, weak=False)
    app.task(worker.tick)
    app.task(worker.save_regularly)
    app.task(models.follow)
    return app
