"""Find links within the built site that lead nowhere: ``python docs/check_links.py build/site``.

Sphinx checks what pages refer to by name; this looks at what came of it, at pages and places within them, and
at whether the search finds some names that users look for.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from snowballstemmer import stemmer

SOUGHT = ("batch_s", "num_slices", "checkpoints", "sharded_update", "doctor")


class Page(HTMLParser):
    """The links of a page, and the names of its places."""

    def __init__(self, text: str):
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag links to or is named."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.add(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


def dead_links(site: Path) -> list[str]:
    """Return each link of a page to a file or a place of the site that is not there."""
    paths = [path for path in site.rglob("*.html") if "_static" not in path.parts]  # there are templates
    pages = {path.resolve(): Page(path.read_text()) for path in paths}
    dead = []
    for path, page in pages.items():
        for link in sorted(page.links):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            place = unquote(address.fragment)
            if not target.exists():
                dead.append(f"{path.relative_to(site)}: no file {link}")
            elif place and target in pages and place not in pages[target].places:
                dead.append(f"{path.relative_to(site)}: no place {link}")
    return dead


def main(site: Path) -> int:
    """Print what is wrong, and return the exit status."""
    index = (site / "searchindex.js").read_text()
    stem = stemmer("english").stemWord  # the index has stems, as the search box makes of what is typed
    unknown = [word for word in SOUGHT if f'"{stem(word)}":' not in index]
    wrong = dead_links(site) + [f"the search does not find {word}" for word in unknown]
    print("\n".join(wrong) or f"{len(list(site.rglob('*.html')))} pages, no dead link")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
