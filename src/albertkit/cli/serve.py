"""albertkit serve"""

from pathlib import Path
from typing import Literal


def serve(
    *models: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    no_key: bool = False,
    allow_host: list[str] | None = None,
    allow_origin: list[str] | None = None,
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    device: str = "auto",
    force: bool = False,
    exits: str | None = None,
    threads: int = 0,
    batch_tokens: int = 4096,
    queue_tokens: int = 262_144,
    timeout: float = 60.0,
    max_megabytes: float = 4.0,
    max_upload_megabytes: float = 100.0,
    drain_seconds: float = 1.0,
    log_level: Literal["debug", "info", "warning", "error"] | None = None,
) -> None:
    """Serve models over HTTP: OpenAI's /v1/embeddings, /fill-mask, /classify and the others, a page at /, /docs, /metrics.

    Ends at Ctrl-C or SIGTERM, after every accepted request has its answer.

    Args:
        models: Folders of models, or NAME=FOLDER. A request without a name is answered by the first model that can.
        host: Address to listen on; other machines reach it only if this says so, and then a key is asked for.
        port: To listen on; 0 for a free one.
        api_key_file: File with the key that clients send as `Authorization: Bearer KEY`. Default: what ALBERTKIT_API_KEY
            holds, or no key.
        no_key: Listen on other addresses without a key: something in front decides who may come in.
        allow_host: Name under which the service is asked, such as example.org; once for each, `*` for any. Without a key
            a service on this machine's own address answers only to localhost and addresses: a web page can let its name
            point there.
        allow_origin: Origin such as https://example.org whose pages may use the service; once for each, `*` for any.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        force: Serve int8 of models that no longer say in it what they say in fp32.
        exits: Leave early: patience:N or entropy:SHARE, of the models trained with exits; `albertkit exits` says what it costs.
        threads: Of the process that runs the models. Default: all cores.
        batch_tokens: Most tokens computed at once; sequences of many requests share a batch.
        queue_tokens: Tokens that may wait; a request beyond them is refused with 429.
        timeout: Seconds a request may take; then 504. One that cannot be finished in them is refused with 429 at once.
        max_megabytes: Largest body of a request.
        max_upload_megabytes: Largest upload of a video.
        drain_seconds: Seconds after SIGTERM in which /ready says 503 and requests are still accepted.
        log_level: debug, info, warning or error; requests are info, probes debug. Default: info, on a terminal without the
            requests.
    """
    from albertkit.serve import ServeSettings, serve
    from albertkit.serve.settings import find_key

    settings = ServeSettings(
        host=host, port=port, api_key=find_key(api_key_file), no_key=no_key, precision=precision, device=device,
        force=force, exits=exits, threads=threads, batch_tokens=batch_tokens, queue_tokens=queue_tokens, timeout=timeout,
        max_megabytes=max_megabytes, max_upload_megabytes=max_upload_megabytes, allow_hosts=tuple(allow_host or ()),
        allow_origins=tuple(allow_origin or ()), drain_seconds=drain_seconds, log_level=log_level,
    )  # fmt: skip
    serve(models, settings)
