"""Make a folder that replaces /sys, with the CPUs, NUMA nodes and GPUs of a fake machine."""

from synk.transport.machines.topology import write_list


def make_sys(root, sockets=1, cores=1, threads=1, nodes_per_socket=1, bare_nodes=(), gpus=()):
    """Write a machine: as Linux counts on x86, the second threads of all cores come after all first ones.

    ``cores`` are those of a socket, ``gpus`` are pairs of an address and the number of a NUMA node. Without
    ``nodes_per_socket`` the kernel has no NUMA.
    """
    total = sockets * cores
    write(root, "sys/devices/system/cpu/online", write_list(range(total * threads)))
    nodes = {}
    for cpu in range(total * threads):
        core = cpu % total
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = [core + thread * total for thread in range(threads)]
        write(root, f"{topology}/thread_siblings_list", write_list(siblings))
        write(root, f"{topology}/physical_package_id", core // cores)
        nodes.setdefault(core * sockets * nodes_per_socket // total, []).append(cpu)
    for node, cpus in nodes.items() if nodes_per_socket else ():
        write(root, f"sys/devices/system/node/node{node}/cpulist", write_list(cpus))
    for node in bare_nodes:
        write(root, f"sys/devices/system/node/node{node}/cpulist", "")
    for address, node in gpus:
        device(root, address, "0x030200", "0x10de", node)
    device(root, "0000:00:01.0", "0x020000", "0x8086", 0)  # a network card
    device(root, "0000:00:02.0", "0x030000", "0x1a03", 0)  # the display of a server's board
    return root


def device(root, address, kind, vendor, node):
    for name, text in {"class": kind, "vendor": vendor, "numa_node": node}.items():
        write(root, f"sys/bus/pci/devices/{address}/{name}", text)


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
