"""Every bound and default of the core, with its unit in its name and what it guards against."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Frames. A peer that announces more is refused before anything is buffered.
FRAME_BYTES_MIN: Final = 16
FRAME_BYTES_MAX: Final = 16 * MIB
HEADER_BYTES_MAX: Final = 4 * MIB
RECEIVE_BUFFER_BYTES: Final = 64 * KIB
RECEIVE_GROWTH_FACTOR: Final = 128
"""Largest ratio of a receive buffer to the bytes received: announcing a length costs nothing."""
RECEIVE_WAKE_BYTES: Final = 256 * KIB
"""The receiver of a large frame is woken up for this many bytes, or for the rest."""
BAD_MAGIC_FRAMES_MAX: Final = 8
"""Consecutive frames of another protocol after which the peer is taken for no SBP peer."""

# Compressed payloads.
COMPRESSION_BYTES_MIN: Final = 4 * KIB
"""Shorter payloads are sent as they are."""
COMPRESSION_RATIO_MAX: Final = 64
"""Largest compression ratio that is accepted: guards against decompression bombs."""
ISOLATION_CLASS_LENGTH_MAX: Final = 64
"""Characters of the name of an isolation class."""

# Headers: a few bytes of FlatBuffers can describe an exponential tree, so nodes are counted.
HEADER_DEPTH_MAX: Final = 8
HEADER_TABLES_MAX: Final = 131_072
"""Tables of one header, each as often as it is referred to: 20 000 items have six each."""
HEADER_LAYOUTS_MAX: Final = 4_096
"""Ways in which the tables of one header place their fields: a sender has a few for each table."""
HEADER_DECODED_BYTES_MAX: Final = 2 * HEADER_BYTES_MAX
"""Strings and vectors of one header, each counted as often as it is referred to."""
HEADER_VECTOR_BYTES: Final = 32
"""Weight of a string or vector beside its elements, so that empty ones are not free."""
TABLE_PLANS_MAX: Final = 64
"""Layouts of one table that are remembered, of those that peers use and of our own."""
TEMPLATE_BYTES_MAX: Final = KIB
"""Larger headers are always read from scratch."""
TEMPLATES_MAX: Final = 512
"""Layouts of whole headers that are remembered, one for each table and length."""
STRING_BYTES_MAX: Final = 64 * KIB

# Calls.
CALLS_IN_FLIGHT_MAX: Final = 1024
"""Open calls per connection."""
CALL_ID_MAX: Final = 2**31 - 1
REQUEST_TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 5_000
CLOSE_TIMEOUT_MS: Final = 2_000
"""How long a client waits for one connection to end that it closes."""
SEAL_TIMEOUT_MS: Final = 5_000
"""How long the placement driver waits for a range server to seal, or to say where it ends."""
REPLICAS_MAX: Final = 7
"""Copies of a stream, each on a range server of its own."""
RACK_LENGTH_MAX: Final = 64
"""Characters of the name of a rack or zone."""
FAIL_OVER_AFTER_MS: Final = 3_000
"""Silence of a range server after which its streams with several replicas go on elsewhere."""
FAIL_OVER_INTERVAL_MS: Final = 250
"""Pause between looks for ranges whose primary is silent."""
FAIL_OVER_RANGES_MAX: Final = 1_000
"""Ranges that the placement driver seals at a time without a request."""
RENEWAL_INTERVAL_MS: Final = 10_000
"""Pause between looks for streams without the replicas that they are to have."""
SYNC_TASKS_MAX: Final = 64
"""Announcements of new ranges (SYNC_RANGES) under way; beyond it servers look them up."""
PLACEMENT_DISK_FREE_BYTES: Final = 1024 * MIB
"""A range server with less gets new ranges only when no other has more."""
METRICS_WINDOW_MS: Final = 60_000
"""Period of the averages and the activity in REPORT_METRICS."""
FETCH_WAIT_MS_MAX: Final = 60_000

# Limits of what a server may make a client keep or do.
ANSWER_BYTES_MAX: Final = 64 * MIB
"""All frames that answer one call, unless it asked for more: half a million streams."""
ANSWER_FRAME_BYTES: Final = KIB
"""Weight of each frame of an answer beside its bytes, so that empty ones are not free."""
UNASKED_FRAMES_MAX: Final = 16_384
"""Frames in a row that no call waits for: requests, late answers, unknown ones."""
UNASKED_BYTES_MAX: Final = 1024 * MIB
"""The same in bytes: more than the late answers of all calls that one connection may have open."""
UNSENT_BYTES_MAX: Final = 128 * MIB
"""Unsent bytes of one connection of a client beyond which it accepts no other call."""
OFFSET_PLAUSIBLE_MAX: Final = 2**53
"""A server that names a higher offset is broken: a million records a second take 285 years."""
LISTED_RANGES_MAX: Final = 500_000
"""Ranges in one answer of a placement driver, which is about STREAMS_PER_CALL streams at most."""
CHANGES_FOLLOWED_MAX: Final = 10_000
"""How often one operation follows streams that move on to new ranges while it looks for them."""
PING_ECHO_BYTES: Final = KIB
"""A PING with a larger payload is echoed only while little waits to be sent, by either side."""
PING_UNSENT_BYTES_MAX: Final = 64 * KIB
"""Bytes that may wait to be sent on a client's connection while it echoes large requests."""
ANSWERS_UNSENT_BYTES_MAX: Final = MIB
"""Answers to a server's requests that may wait to be sent before the connection is ended."""

# Heartbeats.
HEARTBEAT_INTERVAL_MS: Final = 3_000
LAST_HEARTBEAT_MS: Final = 1_000
"""How long a range server that stops waits for the answer to its last heartbeat."""
HEARTBEAT_TIMEOUT_MS: Final = 15_000
"""Silence after which a range server is not given new ranges."""
SERVER_SECRET_BYTES: Final = 32
"""Random bytes of a range server's secret."""
CHALLENGE_BYTES: Final = 32
"""Random bytes that a connection's peer has to know a secret for."""
PROOF_TIMEOUT_MS: Final = 1_000
"""How long the placement driver waits for a range server to look at a proof."""
HEARTBEAT_TIMEOUT_MS_MIN: Final = 100
HEARTBEAT_TIMEOUT_MS_MAX: Final = 3_600_000
IDLE_CONNECTION_MS: Final = 60_000
GOAWAY_GRACE_MS: Final = 1_000
"""For a peer to close a connection after GOAWAY, once its open calls are answered."""

# Peers that keep a server waiting are cut off.
FIRST_FRAME_MS: Final = 10_000
"""From the connection to the end of its first frame."""
FRAME_COMPLETION_MS: Final = 30_000
"""From the first byte of a frame to its last, while the socket is read."""
FRAME_CONTENDED_MS: Final = 5_000
"""The same for a frame that holds memory which other connections wait for."""
FRAME_STALLED_MS: Final = 2_000
"""For RECEIVE_WAKE_BYTES more of such a frame, or the rest."""
WRITE_STALL_MS: Final = 30_000
"""For a peer to read all that waits for it at a time."""
WRITE_STALL_CONTENDED_MS: Final = 2_000
"""For a peer to read UNREAD_PROGRESS_BYTES of that, or the rest, while others wait for it."""
UNREAD_PROGRESS_BYTES: Final = 256 * KIB
SWEEP_MS: Final = 250
"""How often peers are looked at that keep the server waiting."""
HANDLER_CANCEL_MS: Final = 10_000
"""For work to end that was cancelled, as its caller is gone or the server stops; then what it holds
is given up and the log says so."""

# Record batches.
BATCH_BYTES_MAX: Final = 10 * MIB
BATCH_RECORDS_MAX: Final = 1_000_000
BATCH_METADATA_BYTES_MAX: Final = 64 * KIB
"""Metadata table in front of a batch's body."""
ARROW_METADATA_BYTES_MAX: Final = MIB
"""Arrow's own metadata inside the body: some 64 bytes for each column."""
SEQUENCE_RECORDS_MAX: Final = 65_536
"""Records of a batch whose records a server has to count one by one."""
BATCH_TARGET_BYTES: Final = MIB
RECORD_BYTES_MAX: Final = 8 * MIB
"""Key, value and headers of one record, or its columns; the rest of a batch is room for what is
around them, which with SCHEMA_FIELDS_MAX columns is more than 1 MiB. A server may be set to allow
more: record_sizes.py has the limits that follow."""
RECORD_BYTES_LARGEST: Final = 64 * MIB
"""The largest value of a server's record_bytes_max; all readers accept records of this size."""
RECORD_TIME_MS_MAX: Final = (2**63 - 1) // 1000
"""The last time of a record, in ms since the epoch: records have microseconds, in 64 bits."""
DECODED_BATCH_BYTES_MAX: Final = RECORD_BYTES_LARGEST + 2 * MIB
"""Sum of the sizes that a compressed Arrow body declares: guards against decompression bombs."""

# Schemas of typed streams.
SCHEMA_BYTES_MAX: Final = MIB
SCHEMA_FIELDS_MAX: Final = 10_000
"""Columns with all that are in them."""
LOGICAL_TYPE_LENGTH_MAX: Final = 256
SCHEMA_DEPTH_MAX: Final = 16
SCHEMA_NAME_BYTES_MAX: Final = KIB
SCHEMA_VERSIONS_MAX: Final = 1_000
SCHEMAS_PER_TURN: Final = 1
"""Schemas that the placement driver registers at a time, before other work has its turn."""
SCHEMA_RESULT_BYTES: Final = KIB
"""Bytes of a schema that count as one result, in RESULTS_PER_FRAME."""
SCHEMA_FAULTS_LENGTH_MAX: Final = 8 * KIB
"""Characters of the message about faults of a schema, which may have a line for each column."""

# Server memory.
CONNECTIONS_MAX: Final = 1024
CONNECTIONS_RESERVED: Final = 64
"""Beyond CONNECTIONS_MAX, for addresses with less than CONNECTIONS_RESERVED_PER_ADDRESS. A quarter
more is for the machine itself, so that its administrators get in."""
CONNECTIONS_RESERVED_PER_ADDRESS: Final = 4
CONNECTIONS_LEAVING_MAX: Final = 64
"""Connections that were sent away for newcomers and are not closed yet; more are not sent away."""
UNUSED_CONNECTION_MS: Final = 500
"""A connection that asked for nothing since it was opened gives its place to a newcomer."""
SPARED_CONNECTION_MS: Final = 5_000
"""The same for one that asked for something, since then. PING and the HEARTBEAT of a client ask for
nothing."""
EVICTION_PAUSE_MS: Final = 100
"""After none was found that can be sent away, before a newcomer makes a server look again."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 128
"""Connections from one address, unless it is the machine's own loopback."""
ACCEPT_BACKLOG: Final = 1024
"""Connections that the system keeps until they are accepted."""
ACCEPTS_PER_TURN_MAX: Final = 64
"""Connections accepted at a time, so that a flood of them does not hold up the others."""
FRAMES_PER_TURN_MAX: Final = 256
"""Frames of all connections that are handled before what was begun goes on."""
TURN_MS: Final = 5
"""The same in time of the processor: some frames take a thousand times as much as others."""
ACCEPT_PAUSE_MS: Final = 1_000
"""Pause of a server that has no descriptor for another connection, before it accepts again."""
DESCRIPTORS_RESERVED: Final = 320
"""Descriptors of the process kept for files, not connections; a quarter where it has few."""
CONNECTION_IN_FLIGHT_BYTES_MAX: Final = 32 * MIB
"""Request bytes of one connection being worked on; beyond it its socket is not read."""
SERVER_IN_FLIGHT_BYTES_MAX: Final = 192 * MIB
"""The same of all connections of a range server, with the large frames that are being received and
CONNECTION_OWN_BYTES of each connection."""
DRIVER_IN_FLIGHT_BYTES_MAX: Final = 128 * MIB
"""The same of a placement driver."""
CONNECTION_OWN_BYTES: Final = 64 * KIB
"""The part of it that each connection has for itself: a few small requests, whatever others do."""
SMALL_REQUEST_BYTES_MAX: Final = 256 * KIB
"""Requests that count for less do not wait behind larger ones."""
CONNECTION_SMALL_BYTES_MAX: Final = 4 * MIB
"""Largest sum of the small requests of one connection, before further ones count as large."""
HEADER_IN_FLIGHT_FACTOR: Final = 16
"""Weight of a byte of a request's header until it is decoded, which takes more memory."""
HEADER_IN_FLIGHT_BYTES_MAX: Final = 24 * MIB
"""Largest weight of a header until it is decoded."""
HEADER_TABLE_DECODED_BYTES: Final = 256
"""Weight of a table of a decoded header, with the objects that a handler makes of it."""
HEADER_UNUSED_BYTES_MAX: Final = 64 * KIB
"""Bytes of a header that nothing refers to, beyond as many as are in use: fields that a newer peer
knows, and how encoders align. A header with more is refused as padded."""
REQUEST_OVERHEAD_BYTES: Final = 8 * KIB
"""Weight of a request beside its bytes: the memory that serving it takes."""
WRITE_BUFFER_HIGH_BYTES: Final = 4 * MIB
SERVER_UNREAD_BYTES_MAX: Final = 48 * MIB
"""Answers of all connections that are made, or wait for their peers to read."""
CONNECTION_UNREAD_OWN_BYTES: Final = 32 * KIB
"""Unread bytes that each connection may have; larger answers are bounded as a whole."""
UNREAD_LOOK_MS: Final = 20  # how often a server looks whether answers were read, if too many wait
RESPONSES_RESERVED_MAX: Final = 4
"""Frames beyond WRITE_BUFFER_HIGH_BYTES that one connection keeps room for while they are made."""
FETCH_FRAME_BYTES: Final = MIB
"""Payload of one FETCH response frame, before the next one is started."""
FETCH_ITEMS_PER_TURN: Final = 128
"""Requests of a FETCH that are looked at before other connections have their turn."""
FETCH_JOIN_BYTES: Final = 64 * KIB
"""Batches of an answer that are smaller on average are sent in one piece."""
CUT_BATCH_BYTES_MIN: Final = 32 * KIB  # smaller ones are sent whole: cutting takes more time
PROJECTIONS_PER_ITEM_MAX: Final = 16  # a server heeds no more of a stream
FETCH_BATCH_BYTES_DEFAULT: Final = MIB
PENDING_APPEND_BYTES_MAX: Final = 80 * MIB
"""Sum of the appends of all connections that wait for the disk; beyond it they are refused."""
APPENDS_ON_WAY_BYTES: Final = 8 * MIB
"""Bytes in flight of one append to one server; beyond it the next frame waits for an answer."""
APPENDS_ON_WAY_MAX: Final = 8
"""The same in frames, however small."""
THROTTLE_MS: Final = 100
DISK_FREE_FLOOR_BYTES: Final = 256 * MIB
"""Free disk that a range server keeps by refusing appends: a log that fills its disk dies of it."""
DISK_FREE_FLOOR_BYTES_MAX: Final = 1024 * 1024 * MIB
DISK_LOOK_INTERVAL_MS: Final = 1_000
"""How often appends make a range server look at its free disk; what came since is subtracted."""

# Log.
SEGMENT_BYTES: Final = 256 * MIB
SEGMENT_BYTES_MIN: Final = 17 * MIB
"""A segment must hold the largest entry."""
SEGMENT_BYTES_MAX: Final = 4096 * MIB
ENTRY_BYTES_MAX: Final = FRAME_BYTES_MAX
GROUP_COMMIT_BYTES_MAX: Final = 32 * MIB
OVERLAPPING_GROUP_BYTES_MIN: Final = 2 * MIB
"""With so much waiting a group is written while the one before it is synced. Less waits
for that, and shares a larger group: a sync costs more than what it takes to write that."""
FSYNC_INTERVAL_MS: Final = 1_000
"""How long acknowledged batches may stay unsynced where `fsync` is "interval"."""
FSYNC_INTERVAL_MS_MAX: Final = 60_000
READS_AT_WORK_MAX: Final = 4
"""Reads for FETCH at a time, each from the disk to the socket; the same number of threads."""
READ_QUANTUM_BYTES: Final = FETCH_FRAME_BYTES
"""Bytes that a class of reads may answer in one turn: about a frame, so turns are short."""
READ_CHARGE_BYTES_MIN: Final = 64 * KIB
"""Smallest weight of a read: a small frame takes the time of this many bytes."""
READ_CLASSES_MAX: Final = 32
"""Classes of reads that wait at a time, tail and catch-up apart; those beyond share two."""
TAIL_WINDOW_BYTES: Final = 2 * GROUP_COMMIT_BYTES_MAX
"""Reads so close to the end of the log are tail reads: the two largest group commits, which were
just written and lie in the page cache. Readers that lag by more catch up."""
RECENT_BODIES_BYTES_MAX: Final = 48 * MIB
"""Bytes of the batches appended last that a range server keeps in memory."""
SEGMENT_FILES_OPEN_MAX: Final = 128
"""Segments held open for reading: a log of many terabytes must not eat up the descriptors."""
INDEX_CACHE_BYTES_MAX: Final = 128 * MIB
"""Memory for indexes of full segments, 33 bytes a batch. One that is larger is held alone."""
SNAPSHOT_RANGES_PER_ENTRY: Final = 65_536
"""Ranges in one SNAPSHOT entry, 29 to 69 bytes each."""
SNAPSHOT_WRITERS_PER_ENTRY: Final = 4_096
"""Writers in one SNAPSHOT_WRITERS entry, some 720 bytes each at most."""
HIGH_WATER_INTERVAL_MS: Final = 100
"""How often a range server notes beside its log how far that is synced, while it grows."""
HIGH_WATER_KEPT_INTERVAL_MS: Final = 10_000
"""How often a placement driver writes down how far the logs of range servers are synced."""
LOG_SCAN_BYTES: Final = 4 * MIB
"""Bytes read at a time at recovery."""
RETENTION_CHECK_INTERVAL_MS: Final = 60_000
RETENTION_CHECK_INTERVAL_MS_MAX: Final = 86_400_000
CLOCK_EVEN_MS: Final = 600_000
"""Time, by the monotonic clock, that a wall clock has to go evenly before it is believed."""
CLOCK_LEAP_MS: Final = 10_000
"""Drift that a wall clock may have within CLOCK_EVEN_MS: clocks that are being adjusted do."""
CLOCK_SUSPICIOUS_MS: Final = 86_400_000
"""A wall clock further ahead of the newest entry of a log is logged when the server starts."""
CLEAN_LIVE_SHARE_MAX: Final = 0.3
"""A segment of whose batches less is live, by bytes, is rewritten without the others."""
CLEAN_LIVE_SHARE_SHORT_MAX: Final = 0.9
"""The same where the disk has no room for appends."""
LOG_RESERVE_BYTES: Final = 4 * MIB
"""Disk space that a log keeps to free more: on a full disk it goes on in a new segment with it."""
LOG_LEFT_BYTES_MIN: Final = 256 * KIB
"""Disk space that has to be left when space is freed: a log that fills its disk dies of it."""
DISK_SHORT_CHECK_INTERVAL_MS: Final = 5_000
"""Pause between looks for disk space to free while there is none for appends."""

# Writers: what is known of those that number their batches, so that repeats are noticed.
WRITER_ID_LENGTH_MAX: Final = 128
"""Characters of a writer's id."""
WRITER_BATCHES_KEPT: Final = 16
"""The last batches of a writer, of which a repeat is answered; this many may be in flight."""
WRITERS_PER_STREAM_MAX: Final = 1_024
"""Writers that a stream remembers: those that appended last."""
WRITERS_MAX: Final = 16_384
"""Writers of all streams that a range server remembers, some 4 KiB of memory each at most."""
WRITERS_PER_RESULT_BYTES: Final = KIB
"""Bytes that describe writers and count as one result, in RESULTS_PER_FRAME."""

# Transactions: what is staged under an id, and decided as a whole.
PRODUCER_LENGTH_MAX: Final = 64
"""Characters of a producer's id."""
TXN_ID_LENGTH_MAX: Final = 160
"""Characters of a transaction's id: producer, batch number, something unique, mark of a copy."""
TXN_DIGEST_BYTES_MIN: Final = 8
TXN_DIGEST_BYTES_MAX: Final = 32
"""A producer's digest of the contents of a batch, by which it recognises them."""
BATCH_NUMBER_LEAP_MAX: Final = 100_000
"""By how much a producer's batch number may exceed its last one: micro-batches count by one."""
TXNS_KEPT_PER_PRODUCER: Final = 16
"""The last published batches of a producer of which more is known than that they are."""
ONE_SHOT_KEPT_MS: Final = 86_400_000
"""How long the published batch of a producer is known that has no other one."""
TXNS_PER_FRAME: Final = 100
"""Decisions that are read at a time to be described; each may have many parts."""
END_TXN_TIMEOUT_MS: Final = 10_000
"""How long the placement driver waits for a range server to end transactions, or to copy them."""
REPLICATE_TIMEOUT_MS: Final = 3_000
"""How long a primary waits for a secondary to have entries on disk."""
REPLICATE_FRAME_BYTES: Final = 4 * MIB
"""Bytes of entries after which another frame begins; one entry may be larger."""
REPLICATE_FRAMES_IN_FLIGHT: Final = 8
"""Frames with entries that are on their way to a secondary."""
REPLICA_WINDOW_BYTES: Final = 256 * MIB
"""Entries that a primary keeps for one secondary until they are durable there."""
COPY_BEHIND_MS: Final = 3_000
"""How long a secondary may lack entries before a range goes on without it."""
COPY_STUCK_MS: Final = 300
"""The same if too few servers are left for anything to be committed."""
SEAL_AGAIN_MS: Final = 1_000
"""Pause before a range server asks again that a range ends in which nothing can be appended."""
REPLICA_CHECK_INTERVAL_MS: Final = 500
"""How often a range server looks after ranges that should end, or are to be settled."""
SETTLE_BACKOFF_MS_MAX: Final = 30_000
"""The longest wait before a copy that cannot be completed is tried again."""
TXN_COPIES_MAX: Final = 4
"""Streams of which the placement driver copies at a time what was staged before a seal."""
STUCK_LOG_INTERVAL_MS: Final = 60_000
"""How often the log says that something committed cannot be published."""
ABORTED_TXNS_KEPT_MS: Final = 30 * 86_400_000
"""How long a transaction that was given up is known by its id, and what was lost of a decision."""
TXN_BATCHES_MAX: Final = 500_000
"""Staged batches that become readable at once in one stream, 16 bytes each in the log."""
TXN_RECORDS_MAX: Final = 2**32 - 1
"""Staged records that become readable at once in one stream."""
TXN_ENDS_KEPT: Final = 16
"""The last ends of transactions that a stream remembers, of those published and those dropped."""
TXN_ENDED_IDS_MAX: Final = 1_024
"""Ids in the ends of either kind that a stream remembers, unless only its last published one."""
STAGINGS_MAX: Final = 65_536
"""Transactions that have something staged in a range of a range server, counted by range."""
SNAPSHOT_STAGED_BYTES: Final = 4 * MIB
"""Bytes of what is staged in one SNAPSHOT_STAGED entry."""
STAGED_TIMEOUT_MS: Final = 86_400_000
STAGED_TIMEOUT_MS_MAX: Final = 30 * 86_400_000
"""How long something may stay staged without a decision."""
STAGED_ASK_MS: Final = 60_000
"""How long a batch is staged before the placement driver is asked whether it was decided."""

# Names and metadata.
STREAM_NAME_LENGTH_MAX: Final = 249
GROUP_NAME_LENGTH_MAX: Final = 249
"""Characters of a consumer group's name."""
STORE_LIFE_LENGTH_MAX: Final = 32
"""Characters of the id of a life of the placement driver's metadata."""
ADDRESS_LENGTH_MAX: Final = 280
"""Characters of host:port; a host name has at most 253."""
DRIVER_NAME_LENGTH_MAX: Final = 64
"""Characters of the name of a placement driver."""
DRIVER_LEASE_MS: Final = 3_000
"""How long one placement driver of several leads after each renewal."""
DRIVER_RENEWAL_MS: Final = 1_000
"""How often it renews that, and the others look whether it still does."""
DRIVER_FORGOTTEN_MS: Final = 3_600_000
"""Time after which a placement driver that was not seen is no longer named."""
STREAMS_MAX: Final = 100_000
"""Streams of a cluster: each takes the placement driver 100 bytes of memory, and 10 us at start."""
RANGES_PER_STREAM_MAX: Final = 10_000
"""Ranges of a stream that were not trimmed away."""
CURSORS_MAX: Final = 1_000_000
"""Cursors of all consumer groups; each group has one at least."""
DECISIONS_MAX: Final = 1_000_000
"""Decided batches that are kept, of all producers: TXNS_KEPT_PER_PRODUCER each."""
ABORTED_TXNS_MAX: Final = 1_000_000
"""Aborted transactions that are kept, for ABORTED_TXNS_KEPT_MS."""
ROWS_MAX: Final = 100_000_000
"""Largest value that each of the six that are settings can be set to."""
STREAMS_PER_REQUEST_MAX: Final = 20_000
TXN_PARTS_MAX: Final = 100_000  # of a decision: 28 bytes each in its request
RESULTS_PER_FRAME: Final = 1_000
"""Results of a batch of requests in one response frame."""
DRAIN_TIMEOUT_MS: Final = 10_000
CLUSTER_RANGE_SERVERS_MAX: Final = 64
"""Range servers that one process runs."""
RETRY_BACKOFF_MS: Final = 50
RETRY_BACKOFF_MS_MAX: Final = 2_000
RETRY_BUDGET_MS: Final = 60_000
"""How long an operation is retried while it makes no progress."""
RETRY_LOG_INTERVAL_MS: Final = 10_000
"""Time without progress after which a client logs an error; two such lines are as far apart."""
OUTAGE_MS: Final = 600_000  # how long work of users goes on while servers are down, by default
REPLICA_PAUSE_MS: Final = 5_000  # a client asks a replica that failed after the others
REPLICA_TIMEOUT_MS: Final = 10_000
"""How long a client waits for an answer before it asks another replica of a range."""
PRIMARY_PATIENCE_MS: Final = 1_000
"""How long a client waits before it asks the placement driver about a primary, or asks again."""
PLACEMENT_DRIVERS_MAX: Final = 16
"""Nodes of a placement driver's cluster that a client takes note of."""
STREAMS_PER_CALL: Final = 2_000
"""Streams that the client names in one metadata frame, so that the answer stays decodable."""
BOUNDS_WATCHED_MIN: Final = 100
"""Fewer streams are asked about each time: it takes a server less than finding what changed."""

# Files that people or other programs write.
SMALL_FILE_BYTES_MAX: Final = MIB
"""A configuration, or a few facts in JSON."""
CHECKPOINT_FILE_BYTES_MAX: Final = 256 * MIB
"""What Spark notes of one micro-batch, with the offsets of all sources of the query."""

assert FRAME_BYTES_MIN < RECEIVE_BUFFER_BYTES < FRAME_BYTES_MAX
assert STRING_BYTES_MAX < HEADER_BYTES_MAX < HEADER_DECODED_BYTES_MAX
assert SEQUENCE_RECORDS_MAX <= BATCH_RECORDS_MAX
assert BATCH_TARGET_BYTES <= BATCH_BYTES_MAX < FRAME_BYTES_MAX - HEADER_BYTES_MAX
assert FETCH_FRAME_BYTES + BATCH_BYTES_MAX <= FRAME_BYTES_MAX - FRAME_BYTES_MIN - HEADER_BYTES_MAX
assert 64 * SCHEMA_FIELDS_MAX + 4 * KIB < ARROW_METADATA_BYTES_MAX
assert (
    ARROW_METADATA_BYTES_MAX + 64 * SCHEMA_FIELDS_MAX + BATCH_METADATA_BYTES_MAX
    < BATCH_BYTES_MAX - RECORD_BYTES_MAX
), "a column has three buffers at most, each of which is padded and may have its size in front"
assert SCHEMAS_PER_TURN * (SCHEMA_BYTES_MAX + 4 * SCHEMA_FAULTS_LENGTH_MAX) < HEADER_BYTES_MAX
assert RESULTS_PER_FRAME * SCHEMA_RESULT_BYTES + SCHEMA_BYTES_MAX < HEADER_BYTES_MAX // 2
assert 4 * SCHEMA_FAULTS_LENGTH_MAX < STRING_BYTES_MAX
assert BATCH_BYTES_MAX < ENTRY_BYTES_MAX < SEGMENT_BYTES_MIN <= SEGMENT_BYTES <= SEGMENT_BYTES_MAX
assert ENTRY_BYTES_MAX <= GROUP_COMMIT_BYTES_MAX
assert 768 * SNAPSHOT_WRITERS_PER_ENTRY <= ENTRY_BYTES_MAX
assert 768 * WRITERS_PER_STREAM_MAX + RESULTS_PER_FRAME * KIB < HEADER_BYTES_MAX // 2
assert SNAPSHOT_STAGED_BYTES < ENTRY_BYTES_MAX
assert RETRY_BUDGET_MS < ONE_SHOT_KEPT_MS, "a retry still finds the decision"
assert 16 * TXN_BATCHES_MAX < ENTRY_BYTES_MAX // 2, "the rest is room for the ids"
assert WRITER_BATCHES_KEPT > 1
assert WRITERS_PER_STREAM_MAX <= WRITERS_MAX
assert PRODUCER_LENGTH_MAX + 2 * 20 + 32 + 12 <= TXN_ID_LENGTH_MAX < 2**8
assert DISK_FREE_FLOOR_BYTES < PLACEMENT_DISK_FREE_BYTES, "new ranges go elsewhere before that"
assert BATCH_BYTES_MAX <= CONNECTION_IN_FLIGHT_BYTES_MAX
assert FRAME_BYTES_MAX <= CONNECTION_IN_FLIGHT_BYTES_MAX < SERVER_IN_FLIGHT_BYTES_MAX
assert CONNECTION_OWN_BYTES <= SMALL_REQUEST_BYTES_MAX <= CONNECTION_SMALL_BYTES_MAX
assert FRAME_BYTES_MAX + HEADER_IN_FLIGHT_BYTES_MAX < DRIVER_IN_FLIGHT_BYTES_MAX // 2
assert PING_ECHO_BYTES <= CONNECTION_UNREAD_OWN_BYTES < WRITE_BUFFER_HIGH_BYTES
assert WRITE_BUFFER_HIGH_BYTES + FETCH_FRAME_BYTES + BATCH_BYTES_MAX < SERVER_UNREAD_BYTES_MAX
assert WRITE_STALL_CONTENDED_MS < WRITE_STALL_MS
assert SWEEP_MS < FRAME_STALLED_MS < FRAME_CONTENDED_MS < FRAME_COMPLETION_MS
assert FRAME_BYTES_MAX < PENDING_APPEND_BYTES_MAX <= SERVER_IN_FLIGHT_BYTES_MAX // 2
assert RESPONSES_RESERVED_MAX >= READS_AT_WORK_MAX, "where one connection reads, it has all places"
assert 0 < READ_CHARGE_BYTES_MIN <= READ_QUANTUM_BYTES <= TAIL_WINDOW_BYTES
assert CONNECTIONS_RESERVED_PER_ADDRESS < CONNECTIONS_PER_ADDRESS_MAX <= CONNECTIONS_MAX
assert SEGMENT_FILES_OPEN_MAX < DESCRIPTORS_RESERVED
assert CONNECT_TIMEOUT_MS < FIRST_FRAME_MS <= FRAME_COMPLETION_MS < IDLE_CONNECTION_MS
assert HEARTBEAT_INTERVAL_MS * 3 <= HEARTBEAT_TIMEOUT_MS <= IDLE_CONNECTION_MS
assert GOAWAY_GRACE_MS < DRAIN_TIMEOUT_MS
assert max(HEARTBEAT_INTERVAL_MS, UNUSED_CONNECTION_MS) < SPARED_CONNECTION_MS < IDLE_CONNECTION_MS
assert RETRY_BACKOFF_MS < RETRY_BACKOFF_MS_MAX < REQUEST_TIMEOUT_MS <= RETRY_BUDGET_MS
assert RETRY_LOG_INTERVAL_MS < RETRY_BUDGET_MS, "a log line comes before the error"
assert CONNECT_TIMEOUT_MS < REPLICA_TIMEOUT_MS < REQUEST_TIMEOUT_MS
assert STREAMS_PER_CALL <= STREAMS_PER_REQUEST_MAX < HEADER_TABLES_MAX // 6
