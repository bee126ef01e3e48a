"""What stands before two servers, of which one computes prompts and the other one what follows.

`router.py STACK PORT PREFILL DECODE BOOTSTRAP`: each request goes to both at once, as the routers of vLLM and SGLang do it; the keys and
values of its prompt go from the one to the other by the servers' own connector, and the answer is the second one's. `BOOTSTRAP` is where
those of the first are found by those of the second.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

# A request of the benchmark.
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
        """Connections to both, as long as it runs."""
        async with ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(limit=0)) as self.session:
            yield

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """A prompt and what follows."""
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
        """Once the first server has answered."""
        async with self.session.post(self.prefill + path, json=asked) as answer:
            text = await answer.text()
            if answer.status != 200:
                print(f"the server of prompts: {answer.status} {text}", flush=True)

    async def parts(self, asked: Asked) -> tuple[Asked, Asked]:
        """What the one server and the other one are asked for."""
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
        """What the benchmark wants to know of a server."""
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
