import openai
from kit import BAD_KEY, BASE, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, check, raises, report, used
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def llm(**fields):
    return OpenAILike(**{
        "model": MODEL, "api_key": KEY, "api_base": f"{BASE}/v1", "max_retries": 0, "is_chat_model": True, "context_window": 1024,
        **fields,
    })  # fmt: skip


def hello(text=PROMPT):
    return [ChatMessage(role="user", content=text)]


def plain():
    answer = llm(max_tokens=6).chat(hello())
    assert answer.message.content
    used(answer.raw.usage.prompt_tokens, answer.raw.usage.completion_tokens)


def stream():
    parts = list(llm(max_tokens=6, additional_kwargs={"stream_options": {"include_usage": True}}).stream_chat(hello()))
    assert "".join(p.delta or "" for p in parts) == parts[-1].message.content != ""
    usage = parts[-1].raw.usage
    used(usage.prompt_tokens, usage.completion_tokens)


def errors():
    raises(openai.AuthenticationError, lambda: llm(api_key=BAD_KEY).chat(hello()))
    raises(openai.NotFoundError, lambda: llm(model=UNKNOWN).chat(hello()))
    found = raises(openai.BadRequestError, lambda: llm().chat(hello(LONG_PROMPT)))
    assert found.code == "context_length_exceeded"


def abort():
    made = llm(max_tokens=500, additional_kwargs={"extra_body": {"ignore_eos": True}}).stream_chat(hello(ENDLESS))
    next(part for part in made if part.delta)
    made.close()


for each in (plain, stream, errors, abort):
    check(each)
report("llama-index-llms-openai-like", "llama-index-core", "openai")
