"""`stage=serve`: the engine as a child process, tbrl's proxy before it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import uvicorn

from tbrl.config import Config
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.errors import ConfigError
from tbrl.serving.backend import Backend
from tbrl.serving.completions import VllmCompletions
from tbrl.serving.proxy import Limits, Proxy

MODEL_NAME = "policy"


def serve(config: Config, folder: str, log: Path) -> None:
    """Serve the policy in `folder` until interrupted. Raises ConfigError when the key's variable
    is empty or the template is refused, BackendFailure when the engine does not start."""
    # uvicorn raises a SIGTERM again after its own shutdown; the engine must be ended before that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    key = api_key(config.serve.api_key_env)
    renderer, interpreter = readers(config, folder)
    serving = config.serve
    with Backend.start(
        folder,
        MODEL_NAME,
        serving.backend_port,
        config.model,
        config.engine,
        config.topology,
        log,
    ) as backend:
        backend.wait_ready(config.engine.start_timeout_s)
        engine = VllmCompletions(
            backend.url, MODEL_NAME, config.engine.max_model_len, renderer.stop_ids
        )
        limits = Limits(serving.max_body_bytes, serving.max_concurrency)
        proxy = Proxy(engine, renderer, interpreter, MODEL_NAME, key, limits)
        uvicorn.run(proxy.app, host=serving.host, port=serving.port, log_level="warning")


def readers(config: Config, folder: str) -> tuple[Renderer, Interpreter]:
    """The renderer and interpreter that training uses for this model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = config.model
    renderer = Renderer(tokenizer, strips_reasoning=model.strips_reasoning)
    interpreter = Interpreter(
        tokenizer, (), model.tool_format, reasoning_preopened=renderer.reasoning_preopened
    )
    return renderer, interpreter


def api_key(variable: str) -> str:
    """The key that the named environment variable holds; empty when none is asked for."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ConfigError(f"serve.api_key_env={variable}: that environment variable is empty")
    return key
