"""Writes the arguments of an installed vLLM's `serve`, as its own parser has them, for tests that have no vLLM.

    python tests/data/vllm_arguments.py > tests/data/vllm-arguments.json

vLLM is under the Apache License 2.0, https://github.com/vllm-project/vllm; this takes names, kinds and choices of its options
from `vllm.entrypoints.launchers.cli_args.make_arg_parser`.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any


def made() -> dict[str, Any]:
    """Options by name."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms.current_platform = CpuPlatform()  # the parser asks for a device, and builds of CI have none
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # What the parser leaves open and the engine checks later.
    more = {
        "--quantization": sorted(QUANTIZATION_METHODS),
        "--tool-call-parser": sorted(ToolParserManager.list_registered()),
        "--reasoning-parser": sorted(ReasoningParserManager.list_registered()),
    }
    options: dict[str, Any] = {}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        for name in action.option_strings:
            choices = more.get(name) or ([str(choice) for choice in action.choices] if action.choices else None)
            options[name] = {
                "nargs": action.nargs,
                "type": action.type.__name__ if action.type in (int, float) else None,
                "choices": choices,
            }
    return options


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        options = made()
        import vllm
    lines = (f"{json.dumps(name)}: {json.dumps(option)}" for name, option in sorted(options.items()))
    print('{{"version": {},\n"options": {{\n{}\n}}}}'.format(json.dumps(vllm.__version__), ",\n".join(lines)))
