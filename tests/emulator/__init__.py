"""An emulator of thread blocks: it runs the CUDA source of emitted kernels on the CPU and checks every access.

    CUDA source --> translate --> build (g++) --> launch: threads, barriers, copies, clocks --> outputs and faults

Sources are kernels of loops (``launch.py``) and the megakernel of a plan (``walk.py``), exactly as NVRTC gets them.
Inline PTX becomes calls of functions named after the instructions (``translate.py``). The emulator implements these
(``cuda.h`` and the ``.cpp`` files): mbarriers with phases and bytes, bulk copies by tensor maps, cp.async, proxies and
their fences, wgmma, and synchronisation of threads. Threads are fibers; a seeded scheduler selects the next one.
Asynchronous copies complete at times that the seed determines; until then their destination bytes are NaN.

Vector clocks over bytes of shared memory decide whether two accesses are ordered, not the order in which they happened
to run. So one run reports a race of the source under any schedule. ``launch.KINDS`` lists the faults:

    race        unordered accesses to the same bytes, at least one of them a write
    proxy       ordered accesses by threads and then by the async proxy without a proxy fence in between
    unwritten   a read of bytes of shared memory that were never written
    bounds      an access outside of tensors and shared memory, or a write to an input
    barrier     an mbarrier used before its initialisation or after its end, or miscounted
    deadlock    threads that wait for ever
    pending     operations in flight, or resources not released, when a thread or the block ends
    diverged    threads that synchronise at different locations, or products without their fence
    trap        the source's own watchdog
    setup       arguments that the hardware does not support

The emulator assumes no more order than the PTX ISA guarantees: a wait acquires what was released to the phase that it
waits for; completion of a bulk copy orders only that copy; a shuffle orders no memory. In global memory, order is
checked where some threads of a block read what others wrote (``Buffer.watched``): releases to semaphores and their
acquires, and proxy fences before bulk loads. Not checked are order between blocks, which run one after another;
registers; and time.
"""
