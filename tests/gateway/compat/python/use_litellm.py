import litellm
from kit import BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, check, raises, report, used

litellm.suppress_debug_info = True
litellm.num_retries = 0


def ask(text=PROMPT, **fields):
    return litellm.completion(**{
        "model": f"openai/{MODEL}", "api_base": f"{BASE}/v1", "api_key": KEY, "messages": [{"role": "user", "content": text}],
        "max_retries": 0, **fields,
    })  # fmt: skip


def plain():
    answer = ask(max_tokens=6)
    assert answer.choices[0].message.content
    used(answer.usage.prompt_tokens, answer.usage.completion_tokens)


def stream():
    chunks = list(ask(max_tokens=6, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    usage = next(c.usage for c in reversed(chunks) if getattr(c, "usage", None))
    used(usage.prompt_tokens, usage.completion_tokens)


def embeddings():
    answer = litellm.embedding(model=f"openai/{EMBEDDER}", input=["a cat"], api_base=f"{BASE}/v1", api_key=KEY)
    assert len(answer.data[0]["embedding"]) > 100
    used(answer.usage.prompt_tokens, 0)


def errors():
    raises(litellm.AuthenticationError, lambda: ask(api_key=BAD_KEY))
    raises(litellm.NotFoundError, lambda: ask(model=f"openai/{UNKNOWN}"))
    raises(litellm.ContextWindowExceededError, lambda: ask(LONG_PROMPT))


def abort():
    made = ask(ENDLESS, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
    next(c for c in made if c.choices and c.choices[0].delta.content)
    made.completion_stream.response.close()


for each in (plain, stream, embeddings, errors, abort):
    check(each)
report("litellm", "openai")
