"""The command line of the comparison, and the record that it leaves in ``bench/results/``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from engine.chart import chart
from engine.comparison import Measured, from_json
from engine.engine_process import StartFailed, running
from engine.measurement import MeasurementFailed
from engine.peer import Peer
from engine.peers import PEERS
from engine.peers.ours import Ours
from engine.report import report
from engine.run import Attachment, Plan, Results, compare
from engine.workload import TEXTS, Tokenize
from load import machine
from server_process import ServerFailed, demo_model, stop_like_ctrl_c_on_sigterm

__all__ = ["main", "parser", "write_record"]

RESULTS = Path(__file__).parents[1] / "results"
TITLES = {"ours": Ours().title, **{peer.name: peer.title for peer in PEERS.values()}}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _cores(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _peers(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not set(names) <= set(PEERS):
        raise argparse.ArgumentTypeError(f"of {', '.join(PEERS)}, separated by commas")
    return names


def _texts(text: str) -> list[str]:
    kinds = [kind for kind in text.split(",") if kind]
    if not set(kinds) <= set(TEXTS):
        raise argparse.ArgumentTypeError(f"of {', '.join(TEXTS)}, separated by commas")
    return kinds


def _attachment(text: str) -> tuple[str, Attachment]:
    name, port, group = text.replace("@", "=").split("=")
    return name, Attachment(int(port), int(group))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    made = argparse.ArgumentParser(
        prog="nox -s bench -- engine", description="Compare our engine with others on this machine."
    )
    add = made.add_argument
    add("--peers", type=_peers, default=list(PEERS), help=f"default {','.join(PEERS)}; '' for ours alone")
    add("--prepare", action="store_true", help="install the peers, each into its own environment, and stop")
    add("--profile", action="store_true", help="only take our engine's decode steps apart")
    add("--no-profile", action="store_true", help="don't do that after the comparison")
    add("--hold", action="store_true", help="start the peers, print how to attach them, wait for Ctrl-C")
    add(
        "--attach",
        type=_attachment,
        action="append",
        default=[],
        metavar="NAME=PORT@GROUP",
        help="measure this peer where it runs already; repeatable",
    )
    add("--streams", type=_numbers, default=[1, 8, 32, 64, 128], help="levels (default 1,8,32,64,128)")
    add("--every-level", action="store_true", help="slow peers too, where no target names them")
    add("--arrivals", type=_numbers, default=[32], help="levels while prompts arrive (default 32)")
    add("--texts", type=_texts, default=[], help=f"for one stream, of {','.join(TEXTS)} (default none)")
    add("--arrival-rate", type=float, default=2.0, help="prompts that arrive a second (default 2)")
    add("--rounds", type=int, default=5, help="times through all levels (default 5)")
    add("--prompt-tokens", type=int, default=60, help="tokens of a prompt (default 60)")
    add("--max-tokens", type=int, default=48, help="tokens of an answer (default 48)")
    add("--cores", type=_cores, default=[0, 1], help="processors for everything (default 0-1)")
    add("--server-flag", action="append", default=[], help="for our server, e.g. --server-flag=--threads=1")
    add("--model-path", help="directory of the model (default: the demo model)")
    add("--append-to", type=Path, help="a record of earlier rounds to go on with")
    add("--results", type=Path, default=RESULTS, help="where the record goes (default bench/results)")
    return made


def _run_command(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def _prepare(names: Sequence[str]) -> int:
    status = 0
    for name in names:
        _say(f"installing {PEERS[name].title} …")
        try:
            PEERS[name].prepare(_run_command)
        except (subprocess.CalledProcessError, OSError) as error:
            _say(f"{PEERS[name].title}: {error}")
            status = 1
    return status


async def _hold(names: Sequence[str], model: Path, cores: Sequence[int]) -> None:
    """Keep peers running, one after the other started, all but held, until cancelled."""
    logs = Path(tempfile.mkdtemp(prefix="seedance-bench-"))

    async def keep(name: str, task_status: trio.TaskStatus[None]) -> None:
        async with running(PEERS[name], model, cores, logs / f"{name}.log") as engine:
            engine.hold()
            print(f"--attach {name}={engine.port}@{engine.group}", flush=True)
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for name in names:
            await nursery.start(keep, name)


def _tokenizer(model: Path) -> Tokenize:
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow to import, and `--help` needs it not

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    return lambda text: tokenizer(text)["input_ids"]


def _with_options(peer: Peer, flags: Sequence[str], journals: Path) -> Peer:
    if not isinstance(peer, Ours):
        return peer
    return attrs.evolve(peer, flags=[*peer.flags, *flags], journal=journals / f"{peer.name}.db")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=RESULTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _compare(options: argparse.Namespace, model: Path) -> int:
    earlier: list[Measured] = []
    record: dict[str, Any] = {"runs": []}
    path = options.append_to
    if path is not None and path.exists():
        record = json.loads(path.read_text())
        earlier = from_json(record["measured"])
    absent = {name: reason for name in options.peers if (reason := PEERS[name].absent()) is not None}
    for name, reason in absent.items():
        _say(f"{PEERS[name].title} is absent: {reason}; `--prepare --peers {name}` installs it")
    taken_at, commit = datetime.now(UTC).isoformat(timespec="seconds"), _commit()
    with tempfile.TemporaryDirectory(prefix="journal-", dir=options.results) as journal:
        chosen: list[Peer] = [Ours(), *(PEERS[name] for name in options.peers if name not in absent)]
        peers = [_with_options(peer, options.server_flag, Path(journal)) for peer in chosen]
        plan = Plan(
            model=model,
            cores=options.cores,
            levels=options.streams,
            arrival_levels=options.arrivals,
            texts=options.texts,
            arrival_rate=options.arrival_rate,
            rounds=options.rounds,
            first_round=1 + max((each.round for each in earlier), default=0),
            prompt_tokens=options.prompt_tokens,
            max_tokens=options.max_tokens,
            attachments=dict(options.attach),
            every_level=options.every_level,
        )
        results = Results()
        try:
            trio.run(compare, peers, plan, _tokenizer(model), _say, results)
        finally:
            if results.measured:
                about = {"taken_at": taken_at, "commit": commit, "absent": absent}
                record["runs"].append(about | _describe(options, peers, plan, results))
                both = [*earlier, *results.measured]
                record["measured"] = [attrs.asdict(each) for each in both]
                name = f"engine-{taken_at.replace(':', '').replace('+0000', 'Z')}.json"
                write_record(path or options.results / name, record, both, print)
    return 0


def _describe(
    options: argparse.Namespace, peers: Sequence[Peer], plan: Plan, results: Results
) -> dict[str, Any]:
    """Say what was measured on what: figures without it mean nothing."""
    started = {name: engine for name, engine in results.engines.items() if name not in plan.attachments}
    return {
        "model": plan.model.name,
        "machine": machine(),
        "cores": plan.cores,
        "prompt_tokens": plan.prompt_tokens,
        "max_tokens": plan.max_tokens,
        "arrival_rate": plan.arrival_rate,
        "server_flags": options.server_flag,
        "versions": {peer.name: peer.version() for peer in peers},
        "failures": results.failures,
        "start_seconds": {name: round(engine.start_s, 1) for name, engine in started.items()},
    }


def _profile(options: argparse.Namespace, model: Path) -> None:
    from engine.step_profile import profile, profile_picture, profile_table  # noqa: PLC0415 - imports torch

    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    found = profile(model, options.streams, options.cores, _tokenizer(model), _say)
    record = {"taken_at": taken_at, "commit": _commit(), "machine": machine(), **found}
    path = options.results / f"profile-{taken_at.replace(':', '').replace('+0000', 'Z')}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(profile_table(record))
    path.with_suffix(".svg").write_text(profile_picture(record))
    print(profile_table(record))
    print(f"all figures in {path}, and as .md and .svg beside it")


def write_record(
    path: Path, record: dict[str, Any], measured: Sequence[Measured], show: Callable[[str], None]
) -> None:
    """Write figures, table and picture side by side, and show the table.

    Args:
        path: Of the JSON; the others have its name with their own endings.
        record: What goes into it.
        measured: All rounds, of which the table and the picture are made.
        show: Gets the table.
    """
    titles = {name: TITLES[name] for name in TITLES if any(each.peer == name for each in measured)}
    text = report(measured, titles)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
    path.with_suffix(".svg").write_text(chart(measured, titles))
    show(text)
    show(f"all figures in {path}, and as .md and .svg beside it")


def main(arguments: Sequence[str]) -> int:
    """Run what the options say; 0, or 1 if something failed, or 130 if stopped."""
    options = parser().parse_args(arguments)
    if options.prepare:
        return _prepare(options.peers)
    stop_like_ctrl_c_on_sigterm()
    options.results.mkdir(parents=True, exist_ok=True)
    status = 0
    try:
        model = Path(options.model_path or demo_model())
        if options.profile:
            _profile(options, model)
        elif options.hold:
            trio.run(_hold, options.peers, model, options.cores)
        else:
            status = _compare(options, model)
            if options.streams and not options.no_profile:
                _profile(options, model)
    except* (ServerFailed, StartFailed, MeasurementFailed) as failures:
        for failure in failures.exceptions:
            _say(f"bench: {failure}")
        status = 1
    except* KeyboardInterrupt:
        _say("bench: stopped")
        status = 130
    return status
