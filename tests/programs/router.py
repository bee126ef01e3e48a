"""A router in front of two inference servers with disaggregated prefill and decode.

`router.py STACK PORT PREFILL DECODE BOOTSTRAP`: each request goes to both servers at once, as in the routers of vLLM
and SGLang; the servers' own connector transfers the prompt's KV cache from the first to the second, whose answer is
returned. `BOOTSTRAP` is the address at which the decode server finds the prefill server's cache.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

# Body of a benchmark's request.
Asked = Mapping[str, Any]


@dataclass
class Router:
    """Two servers, by the beginnings of their addresses."""

    stack: str
    prefill: str
    decode: str
    bootstrap: str
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    async def opened(self, application: web.Application) -> AsyncIterator[None]:
        """Connections to both servers, for as long as the router runs."""
        async with ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(limit=0)) as self.session:
            yield

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Forwards a request to both servers."""
        first, second = await self.parts(await request.json())
        prompt = asyncio.create_task(self.done(request.path, first))
        async with self.session.post(self.decode + request.path, json=second) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await prompt
            await response.write_eof()
        return response

    async def done(self, path: str, asked: Asked) -> None:
        """Sends a request to the prefill server and waits for its answer."""
        async with self.session.post(self.prefill + path, json=asked) as answer:
            text = await answer.text()
            if answer.status != 200:
                print(f"the server of prompts: {answer.status} {text}", flush=True)

    async def parts(self, asked: Asked) -> tuple[Asked, Asked]:
        """Bodies of the requests to the prefill and the decode server."""
        number = next(self.numbers)
        if self.stack == "sglang":
            host, _, port = self.bootstrap.rpartition(":")
            both = asked | {"bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": number}
            return both, both
        address = f"http://{self.bootstrap}"
        async with self.session.get(f"{address}/query") as known:
            engine = (await known.json())["0"]["engine_id"]
        transfer = {"transfer_id": f"{number}", "do_remote_prefill": False, "do_remote_decode": True}
        prompt = {word: value for word, value in asked.items() if word not in ("stream", "stream_options")}
        prompt |= {"max_tokens": 1, "kv_transfer_params": transfer}
        found = {"remote_engine_id": engine, "remote_bootstrap_addr": address}
        transfer = transfer | {"do_remote_prefill": True, "do_remote_decode": False} | found
        return prompt, asked | {"kv_transfer_params": transfer}

    async def look(self, request: web.Request) -> web.Response:
        """Forwards the benchmark's queries about the server."""
        async with self.session.get(self.decode + request.path) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stack", choices=("vllm", "sglang"))
    parser.add_argument("port", type=int)
    for word in ("prefill", "decode", "bootstrap"):
        parser.add_argument(word)
    words = vars(parser.parse_args())
    port = words.pop("port")
    router, application = Router(**words), web.Application(client_max_size=1 << 30)
    application.cleanup_ctx.append(router.opened)
    application.router.add_post("/{path:.*}", router.ask)
    application.router.add_get("/{path:.*}", router.look)
    web.run_app(application, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
