"""Which engine knows which architecture. What no list names may still run: the engine is tried, and the version notes it.

Entered on 2026-11-30 from what is known of the engines' own lists (vLLM: docs/models/supported_models.md; TensorRT-LLM: support
matrix of its PyTorch workflow; llama.cpp: the `gguf` package's names, which a test compares). Not a promise: an engine that refuses
an architecture fails its replica with its own words.
"""

from __future__ import annotations

from typing import Final

VLLM: Final = frozenset({
    "ArceeForCausalLM", "BaichuanForCausalLM", "BailingMoeForCausalLM", "BertModel", "BloomForCausalLM", "ChatGLMModel",
    "Cohere2ForCausalLM", "CohereForCausalLM", "DbrxForCausalLM", "DeciLMForCausalLM", "DeepseekForCausalLM", "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "Exaone4ForCausalLM", "ExaoneForCausalLM",
    "FalconForCausalLM", "FalconH1ForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3nForConditionalGeneration", "GemmaForCausalLM",
    "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GlmForCausalLM", "GptOssForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM", "InternLM2ForCausalLM", "InternLM3ForCausalLM", "InternLMForCausalLM", "JambaForCausalLM",
    "KimiK2ForCausalLM", "Llama4ForConditionalGeneration", "LlamaForCausalLM", "LlavaForConditionalGeneration", "MPTForCausalLM",
    "Mamba2ForCausalLM", "MambaForCausalLM", "MiMoForCausalLM", "MiniCPM3ForCausalLM", "MiniCPMForCausalLM", "MiniMaxM2ForCausalLM",
    "Mistral3ForConditionalGeneration", "MistralForCausalLM", "MixtralForCausalLM", "ModernBertModel", "NemotronForCausalLM",
    "NemotronHForCausalLM", "OPTForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM", "OlmoeForCausalLM",
    "Phi3ForCausalLM", "PhiForCausalLM", "PhiMoEForCausalLM", "Qwen2ForCausalLM", "Qwen2Model", "Qwen2MoeForCausalLM",
    "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification",
    "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen3VLForConditionalGeneration", "RobertaModel", "SeedOssForCausalLM",
    "SmolLM3ForCausalLM", "SolarForCausalLM", "StableLmForCausalLM", "Starcoder2ForCausalLM", "XLMRobertaForSequenceClassification",
    "XLMRobertaModel", "XverseForCausalLM", "Zamba2ForCausalLM",
})  # fmt: skip

TENSORRT_LLM: Final = frozenset({
    "DeepseekV3ForCausalLM", "Exaone4ForCausalLM", "Gemma3ForCausalLM", "GptOssForCausalLM", "LlamaForCausalLM",
    "Llama4ForConditionalGeneration", "MistralForCausalLM", "Mistral3ForConditionalGeneration", "MixtralForCausalLM",
    "NemotronForCausalLM", "NemotronHForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
})  # fmt: skip

# Those whose adapters each engine loads, also by GGUF's names: a base may be there as GGUF only. llama.cpp's are those that the
# runtime converts (engines/lora_gguf.py).
_GGUF_LORA: Final = frozenset({"llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "granite"})
VLLM_LORA: Final = _GGUF_LORA | VLLM - {
    "BertModel", "RobertaModel", "XLMRobertaModel", "MambaForCausalLM", "Mamba2ForCausalLM", "MPTForCausalLM", "BloomForCausalLM",
}  # fmt: skip
LLAMACPP_LORA: Final = _GGUF_LORA | frozenset({
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
    "Phi3ForCausalLM", "SmolLM3ForCausalLM", "GraniteForCausalLM",
})  # fmt: skip

# GGUF's names of architectures that llama.cpp loads.
LLAMACPP: Final = frozenset({
    "afmoe", "apertus", "arcee", "arctic", "arwkv7", "baichuan", "bailingmoe", "bailingmoe2", "bert", "bitnet", "bloom", "chameleon",
    "chatglm", "codeshell", "cogvlm", "cohere2", "command-r", "dbrx", "deci", "deepseek", "deepseek2", "dots1", "dream", "ernie4_5",
    "ernie4_5-moe", "exaone", "exaone4", "falcon", "falcon-h1", "gemma", "gemma-embedding", "gemma2", "gemma3", "gemma3n", "gemma4", "glm4",
    "glm4moe", "gpt-oss", "gpt2", "gptj", "gptneox", "granite", "granitehybrid", "granitemoe", "grok", "grovemoe", "hunyuan-dense",
    "hunyuan-moe", "internlm2", "jais", "jamba", "jina-bert-v2", "lfm2", "lfm2moe", "llada", "llada-moe", "llama", "llama4", "mamba",
    "mamba2", "minicpm", "minicpm3", "minimax-m2", "mistral3", "modern-bert", "mpt", "nemotron", "nemotron_h", "neo-bert", "nomic-bert",
    "nomic-bert-moe", "olmo", "olmo2", "olmoe", "openelm", "orion", "pangu-embedded", "phi2", "phi3", "phimoe", "plamo", "plamo2", "plm",
    "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "refact",
    "rwkv6", "rwkv6qwen2", "rwkv7", "seed_oss", "smallthinker", "smollm3", "stablelm", "starcoder", "starcoder2", "t5", "t5encoder",
    "xverse",
})  # fmt: skip


def engines_for_safetensors(architecture: str, quantization: str) -> list[str]:
    """Engines to try, best known first."""
    found = ["vllm"]
    if architecture in TENSORRT_LLM and quantization in {"BF16", "F16", "FP8", "NVFP4"}:
        found.append("tensorrt_llm")
    return found


def engines_for_gguf(architecture: str, *, parts: int) -> list[str]:
    """Ollama takes one file only."""
    return ["llamacpp", "ollama"] if parts == 1 else ["llamacpp"]


def known(architecture: str) -> bool:
    return architecture in VLLM or architecture in LLAMACPP
