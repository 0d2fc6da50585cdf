/*
 * limits.h: every bound of the library, each with its reason. Exceeding one is a named error, never a crash.
 */
#ifndef HR_BASE_LIMITS_H
#define HR_BASE_LIMITS_H

/*
 * The reference reader refuses longer headers; tested before the file's size. Opening such a file takes at most the
 * header's bytes and about 190 bytes a tensor of memory. Measured on one core of a server (AMD EPYC):
 *   100 MB of blanks 0.16 s, 96 MiB; 96 MB of escaped text 0.25 s, 92 MiB; 99 million brackets 0.11 s, 95 MiB
 *   a million tensors, last first (80 MB) 0.35 s, 260 MiB; a name of 1 MB or 100,000 dimensions 1 ms, 1 to 2 MiB
 * A test holds these to within a few times the time and a fifth of the memory.
 */
#define HR_HEADER_BYTES_MAX 100000000u
/* serde_json refuses deeper nesting; the scanner needs no stack for it, but verdicts must agree. */
#define HR_JSON_DEPTH_MAX 127
/* numpy allows 64 dimensions and PyTorch no more; strict mode refuses what nobody can hold. */
#define HR_RANK_MAX 64
/* An index maps names to files: the largest published ones are under 20 MB. */
#define HR_INDEX_BYTES_MAX 200000000u
/* Files of one checkpoint: published ones have up to 1,400 shards. */
#define HR_FILE_COUNT_MAX 100000u
/* Threads that read headers, unless told otherwise: opening is bound by latency, not by cores. */
#define HR_OPEN_THREAD_DEFAULT 8
/* Threads of one load, or of one open: beyond the memory channels of a socket more threads only cost. */
#define HR_READER_MAX 128
#define HR_READER_DEFAULT_MAX 16
/*
 * With GPUs so many for each, and no more than the former in all: what fills one link. Those that then wait for it only
 * hold bytes that leave the processor's cache meanwhile.
 */
#define HR_READER_REMOTE_DEFAULT 12
/* The grid of reads. */
#define HR_CHUNK_BYTES_MIN (64u << 10)
#define HR_CHUNK_BYTES_DEFAULT (4u << 20)
#define HR_CHUNK_BYTES_MAX (1u << 30)
/* Devices of one loader: bits of a word in its plans. */
#define HR_DEVICE_COUNT_MAX 64
/*
 * The same grid where chunks go to GPUs, through slots of pinned memory of this size. A copy of its own costs the copy
 * engine about 2 us between two of them, however many streams there are: 12 readers reached 45 GB/s with 2 MiB, 48 with
 * 4 MiB, and 37 with 8 MiB, which leave the processor's cache before they are copied (H200, PCIe 5, 55 GB/s).
 */
#define HR_CHUNK_BYTES_REMOTE (4u << 20)
#define HR_CHUNK_BYTES_REMOTE_MAX (64u << 20)
/*
 * The same where several ranks of a process group load, which are on one machine as a rule. What passes through the
 * processor's cache for all of them does not fit there any more, and then reads and copies both are slower: 4.5 GB to each
 * of two H200 at once took 98 to 134 ms with 4 MiB, on three machines and from one load to the next, and 105 to 109 ms
 * with this.
 */
#define HR_CHUNK_BYTES_GROUP (2u << 20)
/*
 * A short load, of fewer chunks for each reader than this, has smaller ones: nothing is copied on before the first have
 * been read, and readers end up to a chunk apart, which is 1.5 ms of 16 readers' 12 (0.5 GB, 4 MiB). No smaller than huge
 * pages, in which two readers should not meet.
 */
#define HR_CHUNK_SHORT_COUNT 12u
#define HR_CHUNK_BYTES_SHORT (2u << 20)
/*
 * Buffers that a ring of io_uring registers: as many slots as staging has, unless they are smaller than 4 MiB. By itself a
 * read of 4 MiB into a registered one takes 0.012 ms of processor time instead of 0.019 where pages are huge, 0.027 instead
 * of 0.14 where they are small; registering one of small pages takes 0.1 ms.
 */
#define HR_FIXED_BUFFERS_MAX 64u
/*
 * Slots of the ring by default, and the most pinned memory unless the caller asks for more. A load from the page cache uses
 * HR_STAGING_DEPTH for each reader.
 */
#define HR_STAGING_SLOTS_DEFAULT 32
#define HR_STAGING_BYTES_MAX (256u << 20)
/* Chunks that a reader keeps between its reads and the copy engine; and where copies wait for collectives too. */
#define HR_STAGING_DEPTH 2
#define HR_STAGING_DEPTH_FEED 4
/* Buffers of host memory through which a loader's loads go where they cannot read into place; made as needed. */
#define HR_BOUNCE_RING_BYTES (256u << 20)
/*
 * Runs of this many bytes are read with O_DIRECT straight to their places, where those agree with the drive; shorter ones
 * would cost the drive up to three operations more, and go through a bounce buffer. At least two pages, so that one is whole.
 */
#define HR_IN_PLACE_BYTES_MIN (64u << 10)
/* Operations in a row that bring nothing new before the file is taken to end there. */
#define HR_SLOT_STALLS_MAX 64u
/* Places of a file that are asked for what the page cache holds of it, and how much of each; smaller files wholly. */
#define HR_HEAT_PLACES 32u
#define HR_HEAT_PLACE_BYTES (256u << 10)
/* Memory of a reader that converts for a GPU that cannot: a part that stays in the processor's cache. */
#define HR_CAST_SCRATCH_BYTES (256u << 10)
/* In files that are cached in part, each chunk is asked about at its end and so far apart, so much at a time. */
#define HR_HEAT_STEP_BYTES (1u << 20)
#define HR_HEAT_STEP_PLACE_BYTES (64u << 10)
/*
 * What the page cache holds this close before what it does not hold makes Linux read ahead when it is read, whatever is
 * advised: as much as read_ahead_kb says, which is 128 KiB on most machines and this on ours. Such chunks wait until the
 * drive has nothing else to do, unless they are more than one part of so many that are cached.
 */
#define HR_HEAT_EDGE_BYTES (8u << 20)
#define HR_HEAT_EDGE_PART 6u
/*
 * Reading ahead asks whether so much is cached, announces it, and asks for it in steps of at most that, and where nobody
 * tells what a call took, of what all kernels take. Of so much behind a file's header some may be cached.
 */
#define HR_READ_AHEAD_BYTES (4u << 20)
#define HR_READ_AHEAD_STEP_MIN (128u << 10)
#define HR_READ_AHEAD_SKIP_BYTES (16u << 20)
/*
 * Bytes of it in flight: what is on its way when a load starts is before the load's own reads. With all that a queue
 * takes, 1 GB on ours, a load that started half a second later was slower than without.
 */
#define HR_READ_AHEAD_FLIGHT_BYTES (64u << 20)
/* Moves that a slot's table holds: as many as a chunk of whole tensors has pieces. */
#define HR_STAGING_MOVES_MAX HR_CHUNK_RUNS_MAX
/* Streams of a device at most, unless told otherwise: with 1, 2, 4 and 12 of them a load took the same time (H200). */
#define HR_LANE_COUNT_DEFAULT 4
#define HR_LANE_COUNT_MAX 16
/* Vectors in one preadv: the kernel's IOV_MAX is 1024; past a few hundred longer calls gain nothing. */
#define HR_IOV_MAX 256
/* EAGAIN in a row before it is an error: files are not expected to say it, and memory pressure passes sooner. */
#define HR_IO_RETRY_MAX 1000
#define HR_QUEUE_DEPTH_DEFAULT 8
#define HR_QUEUE_DEPTH_MAX 256
/* Arenas: large enough for huge pages to pay, small enough that one kept tensor pins little. */
#define HR_ARENA_BYTES_DEFAULT (256u << 20)
/* The same on GPUs, whose driver rounds each to 2 MiB: 69 arenas of 256 MiB took 80 MiB more than was asked for (H200). */
#define HR_ARENA_BYTES_REMOTE (512u << 20)
/* Where a tensor starts in an arena: what cudaMalloc gives and what the widest vector loads need. */
#define HR_TENSOR_ALIGNMENT 256u
/*
 * The next three divide slices into those read run by run and those read whole into a bounce buffer and copied out.
 * Measured on one core of a server (AMD EPYC), page cache hot, in ns a run, run by run / through the buffer:
 *   runs that touch in the file, a vector each: 256 bytes 68 / 46, 512 bytes 66 / 83, 1 KiB 104 / 144
 *   runs of 64 bytes, a read each, gaps of 1 KiB 870 / 80, 2 KiB 880 / 140, 4 KiB 900 / 280, 8 KiB 910 / 800
 *   runs with gaps of 1 KiB, a read each: 4 KiB 1470 / 750, 8 KiB 2100 / 1400, 16 KiB 3130 / 2690, 32 KiB equal
 */
/* A run is read by itself unless it is shorter than this: a vector of a preadv costs what copying this much does. */
#define HR_DIRECT_RUN_BYTES_MIN 512u
/*
 * Gaps between runs up to this are read along with them. Up to 8 KiB that would still be faster, but only what is
 * needed is to be read; so small a gap lies in pages that storage has to deliver anyway.
 */
#define HR_SIEVE_GAP_BYTES_MAX 1024u
/* Runs of this many bytes are never read along with a gap: many cores at once feel the second copy more than one. */
#define HR_SIEVE_RUN_BYTES_MAX 8192u
/* Wider gaps end a bounce buffer's range once it spans this much, so that chunks stay few. */
#define HR_SIEVE_SPAN_BYTES_MIN 4096u
/* A gap that always ends it: reading this much costs more than another chunk does. */
#define HR_STAGED_GAP_BYTES_MAX (64u << 10)
/*
 * Runs with gaps of at most HR_STAGED_GAP_BYTES_MAX, columns of a matrix for one, are cut into chunks that span no more
 * than a chunk's bytes, so that storage can deliver their rows whole: measured cold, 32768 runs of 1 KiB in rows of 8 KiB
 * take 0.8 s read one by one, and 0.1 s with their rows. Not where that would read more than this many times the need.
 */
#define HR_ROWS_OVER_READ_MAX 16u
/* Read operations that a chunk may need at most, so that chunks of short runs are spread over the threads too. */
#define HR_CHUNK_RUNS_MAX 4096u
/* Where a chunk is cut inside a run if its grid does not allow it: pages, and what O_DIRECT wants. */
#define HR_CUT_ALIGNMENT 4096u
/* Files that one load keeps open at once, further bounded by half of RLIMIT_NOFILE. */
#define HR_OPEN_FILES_MAX 128

/*
 * The ways into place on a GPU. Measured on an H200, single copies from pinned memory in GB/s:
 *   by size: 16 KiB 6, 64 KiB 16, 256 KiB 34, 3 MiB 52; the placing kernel 48 for anything of 4 KiB and more
 *   2D copies by rows of 256 bytes to 16 KiB: 33 to 47
 * Copies leave the GPU's processors to others, so they are taken where they cost little.
 */
#define HR_PLACE_COPY_BYTES_MIN (256u << 10)
#define HR_PLACE_ROW_BYTES_MIN 512u
/* The placing kernel's grid: 64 blocks fill the link; one block is worth starting for this many bytes. */
#define HR_PLACE_BLOCK_COUNT_MAX 64u
#define HR_PLACE_BLOCK_BYTES (32u << 10)
#define HR_PLACE_THREAD_COUNT 512u
/* Copies in one call of the driver: more gain nothing, and their table lies on the stack. */
#define HR_PLACE_BATCH_COUNT 256u
/*
 * Device memory of one lane for sources that the placing kernel cannot read from host memory; a chunk to a GPU has at
 * most 64 MiB. What spans more goes by copies.
 */
#define HR_BOUNCE_BYTES_MAX ((64u << 20) + (64u << 10))
/* CPUs and NUMA nodes: the most that Linux can be built for on x86-64 and on aarch64. */
#define HR_CPU_COUNT_MAX 8192u
#define HR_NODE_COUNT_MAX 1024u

/*
 * Bytes in flight towards storage, of all loads of a process (engine/flow_control.h). Most: 10 GB/s over a network file
 * system that answers after 10 ms keeps 100 MB in flight. At first: what the fastest single drives want (12 GB/s times
 * 100 us) many times over, and enough that short loads from slower storage do not have to wait for the first doublings.
 */
#define HR_FLOW_BYTES_MAX (256u << 20)
#define HR_FLOW_BYTES_START (16u << 20)
/* At least: while one operation is set up or its end is seen, the drive works on another. */
#define HR_FLOW_OPERATION_COUNT_MIN 2
/* Levels a quarter apart: from the best one the next is at most an eighth away. 60 of them span a factor of 10^5. */
#define HR_FLOW_LEVEL_STEP 1.25
#define HR_FLOW_LEVEL_COUNT_MAX 64
/*
 * A measurement lasts so many round trips, operations and ns, at least: fewer are at the mercy of bursts and of single
 * slow operations. After the long time, so few operations are enough: large ones on slow storage.
 */
#define HR_FLOW_WINDOW_ROUND_COUNT 4
#define HR_FLOW_WINDOW_OPERATION_COUNT 16
#define HR_FLOW_WINDOW_NS 5000000u
#define HR_FLOW_WINDOW_LONG_NS 50000000u
#define HR_FLOW_WINDOW_LONG_OPERATION_COUNT 4
/* Of the budget must have been in use on average, or the measurement tells of the load and not of the drive. */
#define HR_FLOW_USED_MIN 0.75
/* Doubling goes on for as long as it gains this: less than noise and a drive that is nearly busy look alike. */
#define HR_FLOW_CLIMB_GAIN 1.08
/* A rate that is as good as the best: what windows of a busy drive differ by anyway. */
#define HR_FLOW_GOOD_ENOUGH 0.97
/* Averages are over this many measurements, and older ones than six looks take are no longer believed. */
#define HR_FLOW_AVERAGE_COUNT 4
#define HR_FLOW_AGE_WINDOW_COUNT 80
/* Windows between two looks at other levels: a look may cost half a window, so 4 % in all, mostly far less. */
#define HR_FLOW_HOLD_WINDOW_COUNT 12
/* Another rate by this factor is another drive. */
#define HR_FLOW_CHANGED 1.3
/* Slower by this factor, each further measurement at the same level may take seconds. */
#define HR_FLOW_BROKEN_DOWN 2.5

/*
 * GPUDirect Storage: device memory of a GPU's ring, little enough for the smallest apertures (BAR1 of 256 MiB); its slots,
 * of which larger chunks use one several times; the pages that cuFile registers whole; and files that stay registered
 * though nobody reads them now.
 */
#define HR_GDS_BYTES_MAX (64u << 20)
#define HR_GDS_SLOT_BYTES_MAX (8u << 20)
#define HR_GDS_PAGE_BYTES (64u << 10)
#define HR_GDS_FILES_MAX 32u

/*
 * Blocks in which files are written, on a grid of the file, and of the buffers through which memory of GPUs goes: large
 * enough for the disk and the copy engine, small enough to stay in the processor's cache between the two.
 */
#define HR_WRITE_BLOCK_BYTES (4u << 20)
/* Threads that write, unless told otherwise: they share one file's lock, and what drives take is reached early. */
#define HR_WRITE_THREAD_DEFAULT_MAX 8
/* Threads that wait for the storage to have whole files, of which it takes many at once as soon as one. */
#define HR_WRITE_SEALER_MAX 16
/* What a header may be padded to: more would be blanks that every reader has to look at. */
#define HR_WRITE_ALIGN_MAX (1u << 20)

/*
 * Process groups: ranks; memory for sending and receiving, of which a window takes a fifth to a half (spread_window.c):
 * 13 MiB of two ranks, which two H200 gather in 0.05 ms, and a thread of the host issues in 0.1 ms. Moves of a window at
 * once.
 */
#define HR_GROUP_WORLD_MAX 1024u
#define HR_GROUP_BYTES_DEFAULT (56u << 20)
#define HR_GROUP_MOVES_MAX 4096u

#endif
