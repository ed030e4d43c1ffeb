import os

from synk.transport.processes.memory_file import MemoryFile


def test_both_processes_write_to_its_end_and_it_outlives_the_other():
    file = MemoryFile("synk-test")
    os.write(file.fileno(), b"from one, ")
    child = os.fork()
    if not child:
        try:
            os.write(MemoryFile("synk-test", file.fileno()).fileno(), b"from the other, ")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    os.write(file.fileno(), b"and again")
    assert os.pread(file.fileno(), 100, 0) == b"from one, from the other, and again"
    file.close()
    file.close()
    assert file.fileno() == -1
