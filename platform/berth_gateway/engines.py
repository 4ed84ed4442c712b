"""What engines do differently on the wire. Data, no behaviour.

An engine that notices that its client has left stops generating, whatever was asked of it. One that does so for streams only
is asked for a stream always, so that nothing is generated for nobody (docs/gateway.md).
"""

from __future__ import annotations

# vLLM watches the connection in its handlers; `openai` stands for any other server of OpenAI's format that does.
# Berth's own servers for ONNX Runtime and the reference do so too.
STOPS_ON_DISCONNECT = frozenset({"vllm", "openai", "onnxruntime", "reference"})

# Refuses a request that may grow beyond the context, and takes just what the prompt leaves of it where no number is named.
FILLS_CONTEXT = frozenset({"vllm"})
# Puts running figures on each chunk when asked. Of several choices they would be those of one.
COUNTS_CONTINUOUSLY = frozenset({"vllm", "onnxruntime", "reference"})
# Does not look at the model's name: a LoRA adapter beside the base is switched on by its number, for one request.
ADAPTERS_BY_NUMBER = frozenset({"llamacpp"})

# Keeps prefixes of prompts for later requests, apart by the salt they come with.
SALTED = frozenset({"vllm"})


def answers_whole(engine: str) -> bool:
    """Whether a client that does not stream may be given the engine's own answer in one piece."""
    return engine in STOPS_ON_DISCONNECT
