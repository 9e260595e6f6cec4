"""A load generator of its own, to measure what fathom bench measures: asyncio, raw sockets, no
package beside Python's own.

    figures = measure(host, port, body, n_request, concurrency)
"""

import asyncio
import json
import statistics
import time


async def one_request(host, port, body):
    """Seconds: when the request was sent, and when each event with text came."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, port)
    sent = time.monotonic()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {await reader.read()!r}")
    times, n_token = [], 0
    while (line := await reader.readline()) and line.strip() != b"data: [DONE]":
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if any(choice.get("text") for choice in event["choices"]):
            times.append(time.monotonic())
        if event.get("usage"):
            n_token = event["usage"]["completion_tokens"]
    writer.close()
    return sent, times, n_token


async def run(host, port, bodies, concurrency):
    room = asyncio.Semaphore(concurrency)

    async def bounded(body):
        async with room:
            return await one_request(host, port, body)

    start = time.monotonic()
    answers = await asyncio.gather(*(bounded(body) for body in bodies))
    return answers, time.monotonic() - start


def measure(host, port, bodies, concurrency):
    """Names and units of `vllm bench serve`."""
    answers, seconds = asyncio.run(run(host, port, bodies, concurrency))
    first = [t[0] - sent for sent, t, _ in answers]
    gaps = [b - a for _, t, _ in answers for a, b in zip(t, t[1:])]
    whole = [t[-1] - sent for sent, t, _ in answers]
    return {"output_throughput": sum(n for _, _, n in answers) / seconds,
            "mean_ttft_ms": 1e3 * statistics.mean(first),
            "mean_itl_ms": 1e3 * statistics.mean(gaps),
            "mean_e2el_ms": 1e3 * statistics.mean(whole)}
