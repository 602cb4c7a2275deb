"""Sources of a pretrained encoder: a local folder, or a hub, simulated here."""

import pytest

from unroll_jax.train.config.errors import UserError
from unroll_jax.train.data.pretrained.folders import FILES, INDEX, SHARDS, find_folder


@pytest.mark.parametrize("source", ["no/such/folder/here", "./missing", "spaces in it", "", "model.safetensors"])
def test_a_source_that_is_neither_a_folder_nor_a_repository_fails_without_a_network(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=f"pretrained={source} is neither a folder nor a repository"):
        find_folder(source)


def test_a_repository_is_downloaded_without_its_pickles(tmp_path, monkeypatch):
    requests = []

    def download(source, *, allow_patterns):
        requests.append((source, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    lines: list[str] = []
    assert find_folder("owner/tiny", log=lines.append) == tmp_path
    assert requests == [("owner/tiny", [*FILES, INDEX, SHARDS])]
    assert lines == ["looking for owner/tiny on the Hugging Face hub"]


def test_without_a_network_one_line_tells_the_way_out(monkeypatch):
    def download(source, *, allow_patterns):
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(
        UserError, match=r"=owner/new is not .* \(no network\); without a network, copy config.json, mo"
    ):
        find_folder("owner/new", log=lambda line: None)
