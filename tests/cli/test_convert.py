"""`albertkit convert` as people call it: what it prints."""


def test_json_is_one_object(golden, tmp_path, run_command):
    report = run_command("convert", golden / "tf1/pretrain_b", tmp_path / "out", "--json").json
    assert report["tensors"] == 80
    assert report["missing"] == []
    assert report["unused"] == []
    assert report["model_class"] == "AlbertForPreTraining"
    assert report["source"].endswith("pretrain_b")


def test_lines_for_people(golden, tmp_path, run_command):
    ran = run_command("convert", golden / "tf1/pretrain_c", tmp_path / "out", "--to", "npz")
    assert "verified: read again and equal bit for bit\n" in ran.out
    assert "- E = H: the source has no projection" in ran.out
