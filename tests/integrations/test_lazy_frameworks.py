"""The frameworks are imported by those who ask for them."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_imports_no_framework() -> None:
    code = (
        "import sys, fastntk, fastntk.integrations; fastntk.record; fastntk.unlearn; "
        "print([name for name in ('transformers', 'lightning', 'pytorch_lightning', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
