"""An emulator of thread blocks: runs the CUDA C++ text of emitted kernels on the CPU, and watches every access.

    text --> translate --> build (g++) --> launch: threads, barriers, copies, clocks --> outputs and faults

Texts are kernels of loops (``launch.py``) and the one launch of a plan (``walk.py``), as NVRTC gets them. Inline PTX
becomes calls of functions named after the instructions (``translate.py``), which the emulator implements (``cuda.h``
and the ``.cpp`` files): mbarriers with phases and bytes, bulk copies by tensor maps, cp.async, proxies and their
fences, wgmma, meetings of threads. Threads are fibers; a seeded scheduler picks who goes on, and asynchronous copies
land whenever the seed lets them, on bytes that are NaN until then.

Whether two accesses are ordered is decided by vector clocks over bytes of shared memory, not by what happened to come
first, so one run reports a race of the text in whatever order it runs. ``launch.KINDS`` lists what is reported:

    race        accesses of the same bytes, one of them a write, that nothing orders
    proxy       ordered, but written by threads and then used by the async proxy without a proxy fence in between
    unwritten   a read of bytes of shared memory that nobody wrote
    bounds      an access outside of tensors and shared memory, or a write to an input
    barrier     an mbarrier used before its initialisation or after its end, or miscounted
    deadlock    threads that wait for ever
    pending     what is still under way, or not given back, when a thread or the block ends
    diverged    threads that meet in different places, or products without their fence
    trap        the text's own watchdog
    setup       what the hardware does not take

Orders are those that the PTX ISA promises, no more: a wait acquires what was released to the phase that it waits for; a
bulk copy's end tells of the copy alone; a shuffle orders no memory. In global memory order is looked at where some
threads of a block read what others wrote (``Buffer.watched``): releases to semaphores and acquires of them, proxy
fences before bulk loads. What is not looked at: order between blocks, which run one after another; registers; time.
"""
