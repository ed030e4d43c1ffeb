"""Rows that are brought by one thread while another records: nothing of theirs gets into the recording."""

import threading

import numpy as np
import pytest

from synk.gpu.device.uploads import Request, Uploader
from synk.gpu.speedups.graphs import Graphs
from synk.values.rows import SelectedRows


@pytest.fixture
def stream(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    return stream


def test_a_buffer_that_grows_waits_for_the_end_of_a_recording(cupy, stream):
    graphs = Graphs(cupy, stream)
    uploader = Uploader(cupy, stream, stream.use, 1, graphs.lock)
    buffer, order = uploader.buffer(), Request("key", np.ones((8, 4)), SelectedRows(0, 8))
    capturing, records = [], stream.record
    stream.record = lambda event: (capturing.append(stream.is_capturing()), records(event))

    def load():
        stream.use()
        uploader.load(buffer, order)

    thread = threading.Thread(target=load)

    def run():
        thread.start()
        thread.join(0.05)

    graphs.record(run)
    thread.join()
    assert capturing == [False]
    np.testing.assert_array_equal(cupy.asnumpy(buffer.hand_out()), order.array)
    uploader.close()
