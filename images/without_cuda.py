"""Makes PyPI's torch small where there is no GPU: without_cuda.py SITE-PACKAGES

PyPI has torch for Linux on x86 with CUDA only, and its extension modules name NVIDIA's libraries (3.5 GB), so it does not
load without them. A machine without a GPU never calls into them: each is replaced by a library of a few kilobytes with
the same name and the same symbols, all of which end the process with a sentence. Needs gcc and binutils; in a Dockerfile
it runs in the stage that installs, so that the libraries never reach the image.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Below this size a library stays as it is: CUDA's runtime and its file and profiling interfaces are called on import.
SMALL_BYTES = 16_000_000
SENTENCE = "this image has no CUDA libraries: use the gpu image"
# A line of `readelf --dyn-syms`: type, binding, visibility, section, name@@version.
SYMBOL = re.compile(
    r"\s(?P<kind>FUNC|OBJECT|NOTYPE|GNU_IFUNC)\s+\S+\s+\S+\s+(?P<section>\S+)\s+(?P<name>[^\s@]+)"
    r"(?:@@?(?P<version>\S+))?"
)
SONAME = re.compile(r"\(SONAME\).*\[(.*)\]")


def readelf(library: Path, *options: str) -> str:
    """What binutils' readelf says about a library."""
    command = ["readelf", "-W", *options, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library: Path) -> list[re.Match[str]]:
    """The dynamic symbols of a library."""
    found = map(SYMBOL.search, readelf(library, "--dyn-syms").splitlines())
    return [match for match in found if match]


def stand_in(library: Path, needed: set[str]) -> None:
    """Replaces a library by one that defines only what others need of it, and does nothing of it."""
    versions: dict[str, list[str]] = {}
    source = ["#include <stdlib.h>", "#include <unistd.h>", f'static const char text[] = "{SENTENCE}\\n";']
    source.append("static void missing(void) { if (write(2, text, sizeof text - 1)) {} abort(); }")
    for symbol in symbols(library):
        name, version = symbol["name"], symbol["version"]
        if symbol["section"] == "UND" or name not in needed or name == version:
            continue
        if symbol["kind"] == "OBJECT":
            source.append(f"char {name}[64];")
        else:
            source.append(f'void {name}(void) __attribute__((alias("missing")));')
        versions.setdefault(version or "", []).append(name)
        needed.discard(name)
    soname = SONAME.search(readelf(library, "-d"))
    with tempfile.TemporaryDirectory() as folder:
        code, script, made = Path(folder, "code.c"), Path(folder, "versions"), Path(folder, "made.so")
        code.write_text("\n".join(source))
        script.write_text(
            "\n".join(
                f"{version} {{ global: {'; '.join(names)}; }};"
                for version, names in versions.items()
                if version
            )
        )
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-s", "-w", f"-Wl,-soname,{soname[1] if soname else library.name}"]
            + ([f"-Wl,--version-script={script}"] if script.stat().st_size else [])
            + ["-o", str(made), str(code)],
            check=True,
        )
        library.unlink()
        shutil.copy(made, library)


def main(site: Path) -> None:
    """Replaces NVIDIA's big libraries below a site-packages folder and removes the compiler for GPUs."""
    before = size(site)
    nvidia = [path for path in site.glob("nvidia/**/*.so*") if path.is_file()]
    big = [path for path in nvidia if path.stat().st_size > SMALL_BYTES]
    needed: set[str] = set()
    for library in [*site.glob("torch/lib/*.so*"), *(path for path in nvidia if path not in big)]:
        needed |= {symbol["name"] for symbol in symbols(library) if symbol["section"] == "UND"}
    for library in big:
        stand_in(library, needed)
    for pattern in ("triton", "nvidia/**/include", "torch/include", "torch/test"):
        for folder in site.glob(pattern):
            shutil.rmtree(folder)
    print(f"without_cuda: {before / 1e9:.1f} GB are {size(site) / 1e9:.1f} GB; {len(big)} libraries replaced")


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
