"""The parts of scripts/release that read and write files.

image SAVED ARCHIVE   an OCI archive of what `docker save` wrote, and beside it what is in it (.cdx.json)
provenance FOLDER     provenance.json: what lies in the folder, and of what it was made
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from rl_release.archive import BadArchive, Released, base_name, write_release
from rl_release.packages import NotLocked, codename, installed, packages
from rl_release.provenance import statement
from rl_release.sbom import bill

ARCHIVE = ".oci.tar"


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; ends with a sentence where an archive is not what it should be."""
    parser = argparse.ArgumentParser(prog="rl_release", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("image")
    command.add_argument("saved", type=Path)
    command.add_argument("archive", type=Path)
    command.add_argument("--base-layers", required=True, help="diff ids of the base image, with commas")
    command.add_argument("--lock", type=Path, required=True)
    command.add_argument("--epoch", type=int, required=True)
    command.set_defaults(run=_image)
    command = commands.add_parser("provenance")
    command.add_argument("folder", type=Path)
    command.add_argument("--commit", required=True)
    command.add_argument("--changed", action="store_true")
    command.add_argument("--locks", type=Path, required=True)
    command.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE")
    command.set_defaults(run=_provenance)
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except (BadArchive, NotLocked) as error:
        sys.exit(f"release: {error}")


def _image(args: argparse.Namespace) -> None:
    write_release(args.saved, args.archive, args.base_layers.split(","), args.epoch)
    with Released(args.archive) as image:
        files = installed(image.layers())
        found = packages(files, image.config["config"].get("Env") or [], args.lock.read_text())
        text = bill(image.name, image.digest, found, codename(files), args.epoch)
        Path(str(args.archive).removesuffix(ARCHIVE) + ".cdx.json").write_text(text)
        print(f"release: {image.name}@{image.digest}, {len(found)} packages")


def _provenance(args: argparse.Namespace) -> None:
    subjects, bases = {}, []
    for path in sorted(args.folder.iterdir()):
        subjects[path.name] = _sha256(path)
        if path.name.endswith(ARCHIVE):
            with Released(path) as image:
                subjects[image.name] = image.digest.removeprefix("sha256:")
                bases.append(base_name(image.config))
    locks = {f"images/requirements/{path.name}": _sha256(path) for path in sorted(args.locks.iterdir())}
    text = statement(
        subjects,
        commit=args.commit,
        changed=args.changed,
        bases=bases,
        locks=locks,
        parameters=dict(parameter.split("=", 1) for parameter in args.parameter),
    )
    (args.folder / "provenance.json").write_text(text)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
