import anthropic
from kit import BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, check, raises, report, used

client = anthropic.Anthropic(api_key=KEY, base_url=BASE, max_retries=0)
HELLO = [{"role": "user", "content": PROMPT}]


def whole_input(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def models():
    assert {m.id for m in client.models.list()} == {MODEL, EMBEDDER}
    assert client.models.retrieve(MODEL).display_name == MODEL


def plain():
    answer = client.messages.create(model=MODEL, max_tokens=6, messages=HELLO, system="You are kind.")
    assert answer.content[0].text and answer.model == MODEL and answer.stop_reason == "max_tokens"
    assert answer._request_id.startswith("req_")
    used(whole_input(answer.usage), answer.usage.output_tokens)


def count_tokens():
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO)
    answer = client.messages.create(model=MODEL, max_tokens=1, messages=HELLO)
    assert counted.input_tokens == whole_input(answer.usage)
    used(0, 0)
    used(whole_input(answer.usage), answer.usage.output_tokens)


def stream():
    with client.messages.stream(model=MODEL, max_tokens=6, messages=HELLO) as made:
        text = "".join(made.text_stream)
    final = made.get_final_message()
    assert text and final.content[0].text == text and final.stop_reason == "max_tokens"
    used(whole_input(final.usage), final.usage.output_tokens)


def errors():
    stranger = anthropic.Anthropic(api_key=BAD_KEY, base_url=BASE, max_retries=0)
    found = raises(
        anthropic.AuthenticationError, lambda: stranger.messages.create(model=MODEL, max_tokens=1, messages=HELLO)
    )
    assert found.body["error"]["type"] == "authentication_error"
    found = raises(anthropic.NotFoundError, lambda: client.messages.create(model=UNKNOWN, max_tokens=1, messages=HELLO))
    assert found.body["error"]["type"] == "not_found_error" and found.request_id.startswith("req_")
    for stream in (False, True):
        found = raises(anthropic.BadRequestError, lambda stream=stream: client.messages.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": LONG_PROMPT}], stream=stream
        ))  # fmt: skip
        assert "maximum context length" in found.body["error"]["message"]


def old_header():
    old = anthropic.Anthropic(
        base_url=BASE, api_key="unused", default_headers={"x-api-key": KEY, "authorization": anthropic.Omit()}
    )
    answer = old.messages.create(model=MODEL, max_tokens=2, messages=HELLO)
    used(whole_input(answer.usage), answer.usage.output_tokens)


def abort():
    with client.messages.create(
        model=MODEL, max_tokens=500, messages=[{"role": "user", "content": ENDLESS}], stream=True
    ) as made:
        next(e for e in made if e.type == "content_block_delta")


for each in (models, plain, count_tokens, stream, errors, old_header, abort):
    check(each)
report("anthropic")
