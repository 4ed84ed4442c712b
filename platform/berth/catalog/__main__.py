"""python -m berth.catalog upload <organisation> <file>… --name my-model --url https://berth.example.org --email you@example.org

Sends a model's files in parts, several at a time, each checksummed. The same command again goes on where it was interrupted.
The password is asked for, or read from a file (--password-file).
"""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from pathlib import Path

from berth.catalog.client import ClientError, Session, upload, watch


class Progress:
    """One line that is written over: done, rate, time left."""

    def __init__(self) -> None:
        self.began, self.first = time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        if self.first < 0:
            self.first = done
        passed = time.monotonic() - self.began
        rate = (done - self.first) / passed if passed > 0 else 0.0
        left = f", {int((total - done) / rate)} s left" if rate > 0 and done < total else ""
        mib = 1 << 20
        line = f"\r{done / mib:,.1f} of {total / mib:,.1f} MiB, {rate / mib:,.1f} MiB/s{left}    "
        sys.stderr.write(line)
        sys.stderr.flush()


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m berth.catalog", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("upload", help="send a model's files")
    add.add_argument("organisation", help="its short name, as in my-org")
    add.add_argument("files", nargs="+", type=Path, help="all files of the model; a folder stands for the files in it")
    add.add_argument("--name", required=True, help="what the model is called; a known name gets a new version")
    add.add_argument("--url", default="http://127.0.0.1:8000", help="address of the dashboard (default: %(default)s)")
    add.add_argument("--email", required=True)
    add.add_argument("--password-file", type=Path, help="file whose first line is the password")
    add.add_argument("--licence", default="")
    add.add_argument("--base", default="", help="of an adapter: its base, as name or name@version")
    add.add_argument("--at-once", type=int, default=4, help="parts sent side by side (default: %(default)s)")
    return parser.parse_args(argv)


def files_of(paths: list[Path]) -> list[Path]:
    """Raises ClientError."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        elif path.is_file():
            found.append(path)
        else:
            raise ClientError(f"There is no file {path}.")
    return found


def main(argv: list[str] | None = None) -> int:
    told = arguments(argv)
    try:
        password = (
            told.password_file.read_text().splitlines()[0] if told.password_file else getpass.getpass("Password: ")
        )
        session = Session(told.url)
        session.sign_in(told.email, password)
        run = upload(
            session, told.organisation, told.name, files_of(told.files), licence=told.licence, base=told.base,
            at_once=max(1, min(told.at_once, 16)), told=Progress(),
        )  # fmt: skip
        sys.stderr.write("\nAll parts are there. Verifying…\n")
        run = watch(session, told.organisation, run["id"])
        session.close()
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. The same command again goes on from here.\n")
        return 130
    except EOFError:
        sys.stderr.write(
            "\nThere is no terminal to ask for the password on. Name a file that has it: --password-file.\n"
        )
        return 1
    except (ClientError, OSError) as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    if run["state"] != "done":
        sys.stderr.write(f"{run['message'] or run['state']}\n")
        return 1
    sys.stdout.write(f"{told.organisation}/{run['name']} has version {run['version']}. Deploy it from the dashboard.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
