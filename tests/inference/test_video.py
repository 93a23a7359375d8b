"""Videos in and out, written and read back by PyAV itself."""

from __future__ import annotations

import json
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless.data.images.image_file import UnreadableImage
from rankless.errors import UserError
from rankless.inference import recording, video
from rankless.inference.predict import predict
from rankless.inference.prediction_journal import NAME
from rankless.inference.sources import is_video, output_names, public

av = pytest.importorskip("av")

MAIN_THREAD = (threading.main_thread().ident, signal.SIGINT)
IDENTITY = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)


def film(path: Path, frames: list[np.ndarray], rate: Fraction | int = 10) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.bit_rate = "yuv420p", 4_000_000
        for pixels in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def decoded(path: Path) -> tuple[list[np.ndarray], list[float], str]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [(frame.to_ndarray(format="rgb24"), frame.time) for frame in container.decode(stream)]
        return [pixels for pixels, _ in frames], [time for _, time in frames], stream.codec_context.name


def streamable(folder: Path, frames: Iterable[np.ndarray]) -> bytes:
    """A film that can be played before all of it is there."""
    writer = video.Writer(folder / "streamed.mp4", Fraction(10))
    for number, pixels in enumerate(frames):
        writer.add(Image.fromarray(pixels), number / 10)
    writer.close()
    return (folder / "streamed.mp4").read_bytes()


@contextmanager
def serving(content: bytes, sent: int | None = None) -> Iterator[str]:
    """The address of a film of which a server sends so many bytes, and then no more."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content[:sent])
            if sent is not None:
                over.wait()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/x.mp4"
        finally:
            over.set()
            server.shutdown()


@pytest.fixture(scope="module")
def silenced(paint, tmp_path_factory):
    """The address of a stream that stops in the middle."""
    frames = (paint("red", size=(160, 120), shift=number) for number in range(60))
    content = streamable(tmp_path_factory.mktemp("silenced"), frames)
    with serving(content, len(content) * 4 // 5) as address:
        yield address


@pytest.fixture
def clip(paint, tmp_path):
    """Seven frames in which the red rectangle moves by 20 pixels each, 10 a second."""
    return film(tmp_path / "clip.mp4", [paint("red", shift=20 * number) for number in range(7)])


def test_every_frame_is_predicted_and_drawn(colors, clip, painted_file, tmp_path):
    still = painted_file("still.png", "green")
    save = ["annotated", "json", "csv", "yolo"]
    report = predict(colors, [str(clip), str(still)], out=tmp_path / "out", device="cpu", save=save)
    assert (len(report.images), report.failed, report.exit_code) == (8, [], 0)
    rows = json.loads((report.out / "predictions.json").read_text())
    assert [row.get("frame") for row in rows] == [*range(7), None]
    np.testing.assert_allclose([row["time"] for row in rows[:7]], np.arange(7) / 10, atol=1e-3)
    for number, row in enumerate(rows[:7]):
        assert (row["source"], row["annotated"]) == (str(clip), "clip.mp4")
        (found,) = row["detections"]
        assert found["name"] == "red" and abs(found["box"][0] - 40 - 20 * number) < 4
    files = {path.name for path in report.out.iterdir() if path.name[0] != "."}
    assert files == {"clip.mp4", "predictions.csv", "predictions.json", "still.png", "yolo"}
    assert (report.out / "yolo/clip-000006.txt").read_text().startswith("0 ")
    frames, times, codec = decoded(report.out / "clip.mp4")
    assert codec == "h264" and len(frames) == 7 and frames[0].shape == (300, 400, 3)
    np.testing.assert_allclose(times, np.arange(7) / 10, atol=2e-3)
    # The box is drawn: the label of the last frame stands where the first has the background.
    away = [np.abs(frame.astype(int) - 120).max(2) for frame in frames]
    assert away[6][50, 170] > 40 > away[0][50, 330]


def test_sides_become_even_and_uneven_times_stay(tmp_path):
    writer = video.Writer(tmp_path / "x.mp4", Fraction(30000, 1001))
    times = [0.0, 0.04, 0.5, 0.5, 2.0]
    for number, at in enumerate(times):
        writer.add(Image.new("RGB", (31, 47), (40 * number, 0, 0)), at)
    writer.close()
    frames, found, _ = decoded(tmp_path / "x.mp4")
    assert frames[0].shape == (48, 32, 3)
    np.testing.assert_allclose(found, [0.0, 0.04, 0.5, 0.501, 2.0], atol=2e-3)


@pytest.mark.parametrize(("a", "b", "quarters"), [(0, 1, 1), (-1, 0, 2), (0, -1, 3)])
def test_a_phones_video_is_upright(paint, tmp_path, a, b, quarters):
    """The matrix of ISO 14496-12 (8.3.2) shows the stored pixel (x, y) at (ax - by, bx + ay): clockwise."""
    pixels = paint("red")
    path = film(tmp_path / "phone.mp4", [pixels])
    head, mark, track = path.read_bytes().partition(b"tkhd")
    matrix = struct.pack(">9i", a << 16, b << 16, 0, -b << 16, a << 16, 0, 0, 0, 1 << 30)
    path.write_bytes(head + mark + track.replace(IDENTITY, matrix, 1))
    (frame,) = video.frames(str(path))
    assert np.abs(frame.pixels.astype(int) - np.rot90(pixels, -quarters)).mean() < 6


def test_what_is_no_video_is_named_and_the_others_go_on(colors, clip, tmp_path):
    content = clip.read_bytes()
    (tmp_path / "bad.mp4").write_text("no video")
    (tmp_path / "empty.avi").write_bytes(b"")
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    names = [str(tmp_path / name) for name in ("bad.mp4", "empty.avi", "sound.mkv", "clip.mp4")]
    report = predict(colors, names, out=tmp_path / "out", device="cpu")
    assert [Path(source).name for source, _ in report.failed] == ["bad.mp4", "empty.avi", "sound.mkv"]
    assert report.failed[0][1].startswith("the video cannot be read (Invalid data")
    assert "only sound" in report.failed[2][1] and len(report.images) == 7 and report.exit_code == 1
    nothing = predict(colors, names[:1], out=tmp_path / "nothing", device="cpu")
    assert nothing.exit_code == 2
    assert clip.read_bytes() == content and (report.out / "clip.mp4").exists()


def test_a_stopped_video_begins_again_and_the_images_before_do_not(
    colors, clip, painted_file, tmp_path, monkeypatch, capsys
):
    sources = [str(painted_file("still.png", "red")), str(clip)]
    real, left = recording.video.Writer.add, [3]

    def add(*words):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        real(*words)

    monkeypatch.setattr(recording.video.Writer, "add", add)
    with pytest.raises(KeyboardInterrupt):
        predict(colors, sources, out=tmp_path / "out", device="cpu", progress=True)
    said = f"stopped after 3 images; to continue, repeat the command with --out {tmp_path / 'out'} --resume"
    assert said in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".rankless-outputs", NAME, "still.png"}
    report = predict(colors, sources, out=tmp_path / "out", device="cpu", resume=True)
    assert (report.computed, len(report.images)) == (7, 8)
    assert [image.frame for image in report.images] == [None, *range(7)]
    assert len(decoded(report.out / "clip.mp4")[0]) == 7


def test_ctrl_c_ends_a_camera_with_whole_results(colors, silenced, tmp_path):
    """A camera has no other end; here a stream that says no more stands for it."""
    out = tmp_path / "out"

    def interrupt() -> None:
        before, lines = -1, 0
        while lines < 4 or lines > before:  # as long as more is recorded
            time.sleep(0.3)
            with suppress(FileNotFoundError):
                before, lines = lines, (out / NAME).read_bytes().count(b"\n")
        signal.pthread_kill(*MAIN_THREAD)

    threading.Thread(target=interrupt, daemon=True).start()
    report = predict(colors, [silenced.replace("//", "//user:secret@")], out=out, device="cpu")
    assert len(report.images) > 2 and report.images[0].source == silenced
    (film,) = out.glob("*.mp4")
    assert len(decoded(film)[0]) == len(report.images)
    assert "secret" not in "".join(path.read_text(errors="replace") for path in out.glob("*.json"))


def test_names_of_videos_cameras_and_streams():
    for name in ("a.MP4", "x/y.mov", "webcam:0", "/dev/video3", "rtsp://a/b", "https://a/b.m3u8", "udp://:1"):
        assert is_video(name), name
    assert not any(map(is_video, ("a.gif", "webcam:x", "a.mp4.png", "digits:val:0")))
    assert public("rtsp://u:p@h:554/a@b") == "rtsp://h:554/a@b" and public("a@b.png") == "a@b.png"
    names = output_names(["a.mov", "b/a.avi", "webcam:0", "rtsp://u:p@h:554/a b"], Path("out"))
    assert names == ["a.mp4", "a-2.mp4", "webcam-0.mp4", "h-554-a-b.mp4"]
    # An image takes neither the files of a video's frame nor those of an image with another ending.
    names = ["a-000001.png", "A.jpg", "a.mp4", "a.png", "a-01.png", "b-000001.png", "Classes.png"]
    assert output_names(names, Path("out"), ["classes"]) == [
        *("a-000001-2.png", "A-2.jpg", "a.mp4", "a-3.png", "a-01.png", "b-000001.png", "Classes-2.png")
    ]


def test_without_av_it_says_what_to_install(colors, clip, tmp_path, monkeypatch):
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"clip.mp4': video needs the package av; run `pip install 'rank"):
        predict(colors, [str(clip)], out=tmp_path / "out", device="cpu")


def test_a_silent_stream_and_a_missing_stream_have_different_errors():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for scheme in ("http", "rtsp"):  # FFmpeg calls the latter's silence invalid data
            with pytest.raises(UnreadableImage, match=r"cannot be opened \(no data for 0\.3 s\)"):
                list(video.frames(f"{scheme}://127.0.0.1:{port}/x", 0.3))
    for name, said in (
        (f"rtsp://127.0.0.1:{port}/x", r"cannot be opened \(Connection refused\); check the host, port"),
        ("webcam:99", r"the camera cannot be opened .*; available cameras: "),
    ):
        with pytest.raises(UnreadableImage, match=said):
            list(video.frames(name))


def test_a_stream_that_falls_silent_ends_and_can_be_interrupted_before(silenced):
    """FFmpeg itself, which waits in C, would let neither happen for as long as it waits."""
    seen = video.frames(silenced)
    assert next(seen).number == 0
    threading.Timer(0.3, signal.pthread_kill, MAIN_THREAD).start()
    with pytest.raises(KeyboardInterrupt):
        list(seen)
    with pytest.raises(UnreadableImage, match=r"it cannot be read after \d+ frames \(no data for 1 s\)"):
        list(video.frames(silenced, 1.0))


def test_a_stream_is_read_while_it_comes(colors, paint, tmp_path):
    """A real server on this machine, and a film that players can begin before its end is there."""
    content = streamable(tmp_path, (paint("red", shift=20 * number) for number in range(4)))
    assert content.find(b"moov") < content.find(b"mdat")
    with serving(content) as address:
        of_a_user = address.replace("//", "//u:p@")
        report = predict(colors, [of_a_user], out=tmp_path / "out", device="cpu")
    assert [round(image.detections[0]["box"][0] / 20) for image in report.images] == [2, 3, 4, 5]
    assert report.images[0].source == address and report.failed == []
    assert (report.out / address.partition("//")[2].replace(":", "-").replace("/", "-")).exists()
