"""The reference behind an OpenAI server. Runs as a file in isolated mode, with the Python that has PyTorch.

python -I -B reference.py --model FOLDER --host … --port … --alias … --secret-file … --slots … --context … --threads …
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

if __name__ == "__main__":  # isolated: the runtime is found by this file's place, not by the environment
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from berth_runtime.servers.openai import app
from berth_runtime.servers.openai.decoder import Decoder


def _load(given: Namespace) -> Decoder:
    from berth_runtime.servers.torch_decoder import load  # PyTorch takes seconds to import

    return load(Path(given.model), given.context, given.threads)


def _settings(decoder: Decoder) -> dict[str, object]:
    return {"context": decoder.context}


def main() -> int:
    """Exit status 0: told to end; 1: the model does not load; 3: the library failed while it served."""
    return app.serve(app.arguments().parse_args(), _load, _settings)


if __name__ == "__main__":
    sys.exit(main())
