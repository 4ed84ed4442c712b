import base64
import struct

import openai
from kit import BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, check, raises, report, used

client = openai.OpenAI(api_key=KEY, base_url=f"{BASE}/v1", max_retries=0)
HELLO = [{"role": "user", "content": PROMPT}]


def models():
    assert {m.id for m in client.models.list()} == {MODEL, EMBEDDER}
    assert client.models.retrieve(MODEL).id == MODEL


def plain():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6, temperature=0)
    assert answer.model == MODEL and answer.choices[0].message.content and answer._request_id.startswith("req_")
    used(answer.usage.prompt_tokens, answer.usage.completion_tokens)


def stream():
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=6, stream=True, stream_options={"include_usage": True}
    ))  # fmt: skip
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
    assert [c.usage is not None for c in chunks].count(True) == 1
    used(chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens)


def stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=200, stop=["."], temperature=0,
                                        stream_options={"include_usage": True}) as made:  # fmt: skip
        kinds = [event.type for event in made]
    assert "content.delta" in kinds
    usage = made.get_final_completion().usage
    used(usage.prompt_tokens, usage.completion_tokens)


def completions():
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=4)
    assert answer.choices[0].text
    used(answer.usage.prompt_tokens, answer.usage.completion_tokens)


def embeddings():
    packed = client.embeddings.create(model=EMBEDDER, input=["a cat", "a dog"])  # asks for base64, gives floats
    plain = client.embeddings.create(model=EMBEDDER, input=["a cat", "a dog"], encoding_format="float")
    assert [d.index for d in packed.data] == [0, 1]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert len(one.embedding) == len(other.embedding) > 100
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-5
    raw = client.embeddings.create(model=EMBEDDER, input=[[1, 2, 3]], encoding_format="base64").data[0].embedding
    assert len(struct.unpack(f"<{len(base64.b64decode(raw)) // 4}f", base64.b64decode(raw))) > 100
    for answer in (packed, plain):
        used(answer.usage.prompt_tokens, 0)
    used(3, 0)


def responses():
    answer = client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=6, store=True)
    assert answer.output_text and answer.model == MODEL and answer.status == "incomplete" and answer.store is False
    used(answer.usage.input_tokens, answer.usage.output_tokens)
    again = client.responses.create(
        model=MODEL, max_output_tokens=6,
        input=[{"role": "user", "content": PROMPT}, *[o.model_dump() for o in answer.output], {"role": "user", "content": "Again."}],
    )  # fmt: skip
    assert again.output_text
    used(again.usage.input_tokens, again.usage.output_tokens)
    found = raises(
        openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    )
    assert (found.code, found.param) == ("previous_response_not_found", "previous_response_id")


def responses_stream():
    events = list(client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=6, temperature=0, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    used(events[-1].response.usage.input_tokens, events[-1].response.usage.output_tokens)
    with client.responses.stream(model=MODEL, input=PROMPT, max_output_tokens=6, temperature=0) as made:
        events = list(made)
    texts = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    final = events[-1].response  # get_final_response() knows only answers that were not cut off
    assert texts and final.output_text == texts
    used(final.usage.input_tokens, final.usage.output_tokens)


def errors():
    stranger = openai.OpenAI(api_key=BAD_KEY, base_url=f"{BASE}/v1", max_retries=0)
    found = raises(openai.AuthenticationError, lambda: stranger.models.list())
    assert found.code == "invalid_api_key"
    found = raises(openai.NotFoundError, lambda: client.chat.completions.create(model=UNKNOWN, messages=HELLO))
    assert found.code == "model_not_found" and found.request_id.startswith("req_")
    for stream in (False, True):
        found = raises(openai.BadRequestError, lambda stream=stream: client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": LONG_PROMPT}], stream=stream
        ))  # fmt: skip
        assert (found.code, found.param) == ("context_length_exceeded", "messages")
    found = raises(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input=LONG_PROMPT))
    assert (found.code, found.param) == ("context_length_exceeded", "input")
    found = raises(openai.BadRequestError, lambda: client.embeddings.create(model=EMBEDDER, input=LONG_PROMPT))
    assert (found.code, found.param) == ("context_length_exceeded", "input")
    found = raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="x"))
    assert (found.code, found.param) == ("unsupported_model", "model")
    found = raises(openai.NotFoundError, lambda: client.chat.completions.create(model=EMBEDDER, messages=HELLO))
    assert found.code == "unsupported_endpoint"


def abort():
    with client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": ENDLESS}],
        stream=True,
        max_tokens=500,
        extra_body={"ignore_eos": True},
    ) as made:
        next(c for c in made if c.choices and c.choices[0].delta.content)


for each in (models, plain, stream, stream_helper, completions, embeddings, responses, responses_stream, errors, abort):
    check(each)
report("openai")
