import asyncio

import openai
from kit import BAD_KEY, BASE, EMBEDDER, ENDLESS, KEY, LONG_PROMPT, MODEL, PROMPT, UNKNOWN, check_async, report, used

HELLO = [{"role": "user", "content": PROMPT}]


async def kind(made, **fields):
    """The class of the error that a chat ends with."""
    try:
        await made.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})
    except openai.APIStatusError as caught:
        return type(caught).__name__
    return None


async def main():
    client = openai.AsyncOpenAI(api_key=KEY, base_url=f"{BASE}/v1", max_retries=0)

    async def models():
        assert {m.id async for m in client.models.list()} == {MODEL, EMBEDDER}

    async def plain():
        answers = await asyncio.gather(*(
            client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4) for _ in range(3)
        ))  # fmt: skip
        for answer in answers:
            assert answer.choices[0].message.content
            used(answer.usage.prompt_tokens, answer.usage.completion_tokens)

    async def stream():
        text, usage = "", None
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=6, stream=True, stream_options={"include_usage": True}
        ):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        assert text
        used(usage.prompt_tokens, usage.completion_tokens)

    async def errors():
        stranger = openai.AsyncOpenAI(api_key=BAD_KEY, base_url=f"{BASE}/v1", max_retries=0)
        assert await kind(stranger) == "AuthenticationError"
        assert await kind(client, model=UNKNOWN) == "NotFoundError"
        assert await kind(client, messages=[{"role": "user", "content": LONG_PROMPT}]) == "BadRequestError"

    async def abort():
        made = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": ENDLESS}],
            stream=True,
            max_tokens=500,
            extra_body={"ignore_eos": True},
        )
        async for chunk in made:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await made.close()

    for each in (models, plain, stream, errors, abort):
        await check_async(each)
    await client.close()


asyncio.run(main())
report("openai")
