"""Pictures of the dashboard for these pages: `python docs/pictures.py STORE`, with the store of the generated incident.

Needs what `tests/e2e/run` needs, and Pillow.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kvwitness.audit.store import Store  # noqa: E402
from kvwitness.dashboards.look import TENANT_COLOURS  # noqa: E402
from tests.e2e.conftest import Visit, ended, launched, serve  # noqa: E402

IMAGES = ROOT / "docs" / "images"
_COLOURS = 96
"""Enough for a page of few colours, and a fifth of the size."""
_FAR = 12
"""How far a colour of a chart may be from what becomes of it, in any of red, green and blue, of 255."""


def main() -> int:
    """Write all pictures."""
    store = Path(sys.argv[1])
    row = Store.open(store).result("incidents").drop_nulls("request").row(0, named=True)
    pool = row["pools"][0]["pool"]
    wanted = {
        "overview": ("", 1000),
        "incident": (f"incident?incident={row['incident']}", 2050),
        "page-map": (f"page-map?pool={pool}&at={row['first_ns']}&colour=content", 1240),
    }
    served = serve(store)
    try:
        with launched() as browser:
            for name, (path, height) in wanted.items():
                keep(IMAGES / f"{name}.png", taken(browser, served.url, path, height))
    finally:
        ended(served)
    return 0


def taken(browser: Any, url: str, path: str, height: int) -> bytes:
    """The upper part of a page."""
    page = browser.new_context(viewport={"width": 1180, "height": height}, timezone_id="UTC").new_page()
    Visit(page, url).go(path)
    page.wait_for_timeout(2_000)  # charts fit themselves to the page
    picture: bytes = page.screenshot()
    return picture


def keep(path: Path, picture: bytes) -> None:
    """Write it with few colours, among them those by which tenants are told apart."""
    path.parent.mkdir(exist_ok=True)
    whole = Image.open(io.BytesIO(picture)).convert("RGB")
    # The usual choice goes by the area of a colour: of two tenants with small bars it makes one.
    kept = b"".join(bytes.fromhex(colour[1:]) for colour in TENANT_COLOURS)
    usual = whole.quantize(_COLOURS - len(TENANT_COLOURS)).getpalette() or []
    chosen = Image.new("P", (1, 1))
    chosen.putpalette([*usual, *kept])
    small = whole.quantize(palette=chosen, dither=Image.Dither.NONE)
    if lost := _lost(np.asarray(whole), np.asarray(small.convert("RGB"))):
        raise SystemExit(f"{path.name}: colours of tenants are lost: {', '.join(lost)}")
    small.save(path, optimize=True)
    print(path.relative_to(ROOT), f"{path.stat().st_size:,} bytes")


def _lost(whole: Any, small: Any) -> list[str]:
    """Colours of tenants in the first picture that have become others in the second."""
    changed = np.abs(whole.astype(int) - small.astype(int)).max(axis=2) > _FAR
    return [c for c in TENANT_COLOURS if (changed & (whole == list(bytes.fromhex(c[1:]))).all(axis=2)).any()]


if __name__ == "__main__":
    sys.exit(main())
