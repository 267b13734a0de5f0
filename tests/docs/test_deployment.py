"""The pages for whoever runs a server name flags, files, variables and metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seedance_server.flags import CONFIG_VARIABLE, settings
from seedance_server.metrics.catalogue import CATALOGUE
from seedance_server.settings_file import read_settings_file

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "configuration.md", ROOT / "docs" / "deployment.md"]
DEPLOYED = [
    ROOT / "deploy" / "Containerfile",
    ROOT / "deploy" / "nginx" / "seedance.conf",
    ROOT / "deploy" / "systemd" / "seedance-server.service",
]
ALL = pytest.mark.parametrize("path", [*PAGES, *DEPLOYED], ids=lambda path: path.name)
FLAGS = {setting.flag for setting in settings().values()} | {"--config", "--help"}
VARIABLES = {setting.environment for setting in settings().values()} | {CONFIG_VARIABLE}
# Of other programs: useradd, systemctl, pip, build, certbot, podman.
FOREIGN_FLAGS = {
    *("--system", "--home-dir", "--shell", "--uid", "--now"),
    *("--no-install-recommends", "--no-cache-dir", "--index-url", "--wheel", "--outdir", "--from", "--mount"),
    *("--deploy-hook", "--restart"),
}


@ALL
def test_flags_that_are_named_are_there(path: Path) -> None:
    """A flag that was renamed is renamed here too."""
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", path.read_text()))
    assert named - FLAGS - FOREIGN_FLAGS == set()


@ALL
def test_variables_that_are_named_are_there(path: Path) -> None:
    """The same for the environment."""
    assert set(re.findall(r"SEEDANCE_[A-Z_]*[A-Z]", path.read_text())) <= VARIABLES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    """Whoever follows a page finds what it speaks of."""
    named = set(re.findall(r"\b(?:deploy|docs|bench)/[\w./-]*\w", page.read_text()))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_settings_of_the_example_file_can_be_read(tmp_path: Path) -> None:
    """The file on the page is one that a server would start with."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    path = tmp_path / "server.toml"
    path.write_text(example)
    assert "model_path" in read_settings_file(path, settings())


def test_metrics_that_are_searched_for_are_there() -> None:
    """Each search of the table of symptoms finds something in a scrape."""
    names = [metric.full_name for metric in CATALOGUE.values()] + ["process_max_fds"]
    names += [f"{name}_{end}" for name in names for end in ("sum", "count")]
    searches = re.findall(r"/metrics \\\| grep (?:-E )?'?([^'`]+?)'?`", PAGES[1].read_text())
    assert len(searches) > 5
    for search in searches:
        pattern = search.replace(r"\|", "|")
        assert any(re.search(pattern, name) for name in names), search
