"""The policies that ship inside the package, by name."""

from __future__ import annotations

from pathlib import Path

from tbrl.errors import ConfigError

PREFIX = "builtin:"
NAMES = ("base", "reference")


def policy_folder(path: str) -> str:
    """Folder of `builtin:base`, `builtin:reference`, or of a local Hugging Face model.

    Raises ConfigError for an unknown name, and for a folder that is missing or holds no model.
    """
    if path.startswith(PREFIX):
        name = path.removeprefix(PREFIX)
        if name not in NAMES:
            raise ConfigError(f"model.path={path!r} is unknown; built in are: {', '.join(NAMES)}")
        return str(Path(__file__).parent / name)
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(
            f"model.path={path!r} is not a folder; give a local Hugging Face model folder or "
            f"one of {[PREFIX + name for name in NAMES]}"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model.path={path!r} holds no config.json; it is no Hugging Face model")
    return str(folder.resolve())
