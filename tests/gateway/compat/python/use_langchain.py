import openai
from kit import BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, check, raises, report, used
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def chat(**fields):
    return ChatOpenAI(
        **{"model": MODEL, "api_key": KEY, "base_url": f"{BASE}/v1", "max_retries": 0, "stream_usage": True, **fields}
    )


def plain():
    answer = chat(max_tokens=6).invoke(PROMPT)
    assert answer.content and answer.response_metadata["model_name"] == MODEL
    used(answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"])


def stream():
    whole = None
    for chunk in chat(max_tokens=6).stream(PROMPT):
        whole = chunk if whole is None else whole + chunk
    assert whole.content and whole.usage_metadata  # it adds up what all chunks say
    used(whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"])


def embeddings():
    made = OpenAIEmbeddings(model=EMBEDDER, api_key=KEY, base_url=f"{BASE}/v1", check_embedding_ctx_length=False)
    assert len(made.embed_query("a cat")) > 100
    used(2, 0)


def errors():
    raises(openai.AuthenticationError, lambda: chat(api_key=BAD_KEY).invoke(PROMPT))
    raises(openai.NotFoundError, lambda: chat(model=UNKNOWN).invoke(PROMPT))
    found = raises(openai.BadRequestError, lambda: chat().invoke(LONG_PROMPT))
    assert type(found).__name__ == "OpenAIContextOverflowError"


def abort():
    made = chat(max_tokens=500, extra_body={"ignore_eos": True}).stream(ENDLESS)
    next(chunk for chunk in made if chunk.content)
    made.close()


for each in (plain, stream, embeddings, errors, abort):
    check(each)
report("langchain-openai", "openai")
