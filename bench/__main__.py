"""Run benchmarks by name: `nox -s bench -- [NAME…] [options]`; without a name, `load`.

Options go to each benchmark named, after the names: `-- NAME --help` lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS = {
    "client": "what a token costs the application's process, with the SDK and with a client of SSE",
    "deterministic": "what it costs that output doesn't depend on what else runs, on each path",
    "drafts": "what drafts cost where they don't help, and bring where they do: the engine alone",
    "engine": "our engine against vLLM, Transformers and llama.cpp: speed and latency, in turns",
    "events": "what reported events weigh, and the time that differences and zstd take",
    "fairness": "what tenants of weights 3, 2 and 1 get under saturation, and what the smallest feels",
    "flow": "what readers that stand still cost others, and what a burst read too slowly loses",
    "gpu": "the engine on a GPU, in one bundle: correctness, then speed with graphs and without",
    "heartbeat": "what it costs to know that idle connections are alive, lazily and by a timer each",
    "journal": "what durability costs: frames a second, and the wait for a commit",
    "kv_layout": "where keys and values could lie: the time that attention takes, and the memory",
    "latency": "what the SDK's latency figures cost for each token, and in memory",
    "load": "what N patient users see: latency and throughput",
    "loop": "the server's processor time for a token, by thread, with the journal and without",
    "metrics": "what being watched costs: a token, a request, a scrape",
    "outage": "how a crowd of clients comes back: attempts per second through an outage, on a virtual clock",
    "prefill": "how many prompt tokens a step should hold beside answers: speed, first tokens, gaps",
    "quantize": "what weights of 8 bits cost in quality and bring in speed: the engine alone",
    "sampler": "what choosing tokens costs, by kind of parameter and number of rows",
    "startup": "how long a start takes, stage by stage, and the memory that the server holds then",
    "turns": "a conversation's second turn against its first: the time to the first token",
    "wire": "what a token weighs on the wire, in each encoding, and what it costs to write",
}
"""Each is the module of that name beside this file; its ``main(arguments)`` gives an exit status."""
DEFAULT = "load"


def main(arguments: Sequence[str]) -> int:
    """Run what is named, one after the other; the worst exit status."""
    names: list[str] = []
    options = list(arguments)
    while options and not options[0].startswith("-"):
        names.append(options.pop(0))
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are:", file=sys.stderr)
        for name, purpose in BENCHMARKS.items():
            print(f"  {name:13} {purpose}", file=sys.stderr)
        return 2
    # Imported when wanted: no benchmark needs what another one compares itself with.
    return max(import_module(name).main(options) or 0 for name in names or [DEFAULT])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
