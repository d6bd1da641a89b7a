"""What gRPC's C-core, which is behind grpc.aio, does otherwise than a case wants."""

from collections.abc import Mapping, Sequence
from typing import Final

# What the standards say and C-core does not do.
CLOSED = "ignores frames of closed streams, as far as it decodes them"
CONTENT_TYPES = "serves calls of any content type"
CUT_OFF = "answers no request that is cut off, or takes what came"
IDLE = "ignores frames of streams that are idle, or cannot have them"
HUFFMAN = "does not look at the end of Huffman's code"
MALFORMED = "serves malformed requests, or answers them by a status"
METHODS = "resets requests of GET and PUT, and has no status 405"
MISPLACED = "ignores the stream of frames of the connection"
PADDING = "takes no padding"
PING_FLAGS = "takes no unknown flags of PING"
PRIORITY = "ignores PRIORITY, whatever it is"
PUSH = "ignores PUSH_PROMISE"
REFUSED = "resets with ENHANCE_YOUR_CALM where streams are too many"
SECOND = "reads the first message of a unary call, and no more"
SPACE = "sends space at the ends of grpc-message as it is"
TIMEOUTS = "takes other forms of grpc-timeout too"
FLAGS = "takes any flag of a message that is not 0 for compressed"
UNKNOWN_ENCODING = "answers unknown encodings by INTERNAL"
TRAILERS = "closes the connection for trailers that do not end the stream"
USER_AGENT = "keeps one user-agent, and gives it behind other metadata"
WINDOW_OF_0 = "closes the connection for a WINDOW_UPDATE of 0 on a stream"
WINDOWS = "takes windows above 2^31-1"
EARLY = "sends SETTINGS before it has read a preface"
BEYOND = "closes the connection for DATA beyond a window"
COMPRESSIONS = "says which compressions it takes in each answer"
GRANTS = "grants a window for a message that its handler waits for, and not before"
HEADS = "looks at frames once they are whole"
HEADER_LISTS = "refuses the call, not the connection, of a header list far above the limit"
NO_GOAWAY = "closes without GOAWAY for an error"
# What this server has, and C-core has not.
FLOODS = "does not count frames that ask for nothing"
MEMORY = "keeps no account of the memory of requests"
UNREAD = "keeps no account of answers that are not read"
OURS = "is not what the case looks into, or replaces parts of"
# Other words, other ways.
CONNECTION_WINDOW = "lets a connection send 4 MiB, and the case sends more at once"
CONTEXT = "has no `done` and no `cancelled` that know the end"
ERRORS = "says errors of handlers and ports in other words"
GOAWAY_CODE = "says INTERNAL_ERROR in the last GOAWAY of an idle or stopped connection"
LATE_CALLS = "does not answer calls that cross its GOAWAY"
LOST_CALLS = "loses calls of a connection that it closes"
MESSAGES = "keeps the last messages of a stream until the next ones"
TASKS = "has tasks of its own"
REASONS = "does not say why connections ended"
RESET_CLIENTS = "resets a call that it has answered early, and gRPC's client then loses the answer"

# Of each module, by the reason: its tests, or cases of them; `*` stands for anything.
DIFFERENCES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "calls/test_early_ends.py": {
        CONNECTION_WINDOW: ["test_early_answers_cost_the_connection_no_window"],
    },
    "calls/test_grpc_calls.py": {
        OURS: ["test_keepalive_pings_are_answered"],
        RESET_CLIENTS: ["test_the_answer_comes_before_a_request_larger_than_every_window"],
    },
    "calls/test_grpc_context.py": {
        ERRORS: [
            "test_a_method_that_a_servicer_does_not_have",
            "test_a_status_that_is_set[True]",
            "test_initial_metadata_comes_once",
        ],
        CONTEXT: ["test_the_end_is_told"],
    },
    "calls/test_grpc_stops.py": {
        LOST_CALLS: [
            "test_calls_in_flight_finish_within_the_grace",
            "test_new_calls_while_one_server_of_two_stops_go_to_the_other",
        ],
        ERRORS: ["test_a_port_is_shared_only_when_asked_for"],
    },
    "calls/test_grpc_unread.py": {
        UNREAD: ["*"],
    },
    "h2spec/test_compression.py": {HUFFMAN: ["*hpack/5.2/1]"]},
    "h2spec/test_definitions.py": {
        IDLE: ["*http2/6.1/1]", "*http2/6.2/3]", "*http2/6.4/1]", "*http2/6.4/2]"],
        CLOSED: ["*http2/6.1/2]"],
        PADDING: ["*http2/6.1/3]", "*http2/6.2/4]"],
        PRIORITY: ["*http2/6.3/*"],
        MISPLACED: ["*http2/6.7/3]", "*http2/6.8/1]"],
        WINDOW_OF_0: ["*http2/6.9/2]"],
        WINDOWS: ["*http2/6.9.1/*"],
    },
    "h2spec/test_exchanges.py": {
        EARLY: ["test_another_preface_is_not_answered_by_frames"],
        REFUSED: ["test_more_streams_than_were_announced"],
    },
    "h2spec/test_generic.py": {
        PADDING: ["*generic/3.1/3]", "*generic/3.2/2]"],
        METHODS: ["*generic/4/1]"],
    },
    "h2spec/test_requests.py": {
        TRAILERS: ["*http2/8.1/1]"],
        MALFORMED: ["*http2/8.1.2*"],
        PUSH: ["*http2/8.2/1]"],
    },
    "h2spec/test_states.py": {
        PING_FLAGS: ["*http2/4.1/2]"],
        IDLE: ["*http2/5.1/1]", "*http2/5.1/2]", "*http2/5.1/3]", "*http2/5.1.1/1]"],
        CLOSED: [
            *("*http2/5.1/5]", "*http2/5.1/6]", "*http2/5.1/8]", "*http2/5.1/9]"),
            *("*http2/5.1/11]", "*http2/5.1/12]", "*http2/5.1.1/2]", "*http2/5.1.1/3]"),
        ],
        MISPLACED: ["*http2/5.4.1/1]"],
    },
    "headers/test_header_tables.py": {
        USER_AGENT: ["test_metadata_is_what_was_sent"],
        TRAILERS: ["*[trailers that do not end]"],
    },
    "headers/test_statuses.py": {
        METHODS: ["test_http_statuses[*-405]"],
        CONTENT_TYPES: ["test_http_statuses[*-415]"],
        TIMEOUTS: ["test_wrong_timeouts[123456789S]", "test_wrong_timeouts[1 S]"],
        CUT_OFF: [
            *("test_bodies[*-nothing]", "test_bodies[*-half a prefix]", "test_bodies[*-a prefix]"),
            *("test_bodies[*-a message cut off*", "test_bodies[*-a large message cut off]"),
        ],
        SECOND: ["test_bodies[*-two messages]", "test_bodies[*-a message and a bit]"],
        FLAGS: ["test_bodies[*-marked with 2]"],
        UNKNOWN_ENCODING: ["test_bodies[*-unknown encoding]"],
        SPACE: ["test_details_that_begin_or_end_with_space"],
    },
    "http2/test_connection_errors.py": {
        PRIORITY: ["*sizes: PRIORITY of *", "*streams: PRIORITY of 0]"],
        IDLE: [
            "*streams: DATA of *",
            "*streams: HEADERS of 0]",
            "*streams: RST_STREAM of *",
            "*streams: WINDOW_UPDATE of idle *",
        ],
        MISPLACED: ["*streams: PING of 1]", "*streams: GOAWAY of 1]"],
        PADDING: ["*padding: DATA*", "*padding: HEADERS]"],
        WINDOWS: ["*windows: too much *", "*windows: a stream's by a setting]"],
        HUFFMAN: ["*blocks: Huffman's end*"],
        HEADER_LISTS: ["*large_blocks: decoded]"],
        HEADS: ["*large_blocks: the head of one more]"],
        EARLY: [
            "*first: SETTINGS ack]",
            "test_a_peer_that_speaks_something_else",
            "test_a_peer_that_says_nothing",
        ],
        NO_GOAWAY: ["test_goaway_says_which_stream_was_the_last"],
    },
    "http2/test_connection_policy.py": {
        REASONS: ["test_the_reason_is_told"],
        GOAWAY_CODE: ["test_one_without_calls_is_ended"],
        LATE_CALLS: ["test_one_that_is_old_takes_no_new_calls_and_answers_those_it_has"],
    },
    "http2/test_floods.py": {
        FLOODS: [
            "test_a_flood_*",
            "test_many_grants_*",
            "test_refusals_that_are_not_read",
            "test_small_pieces_of_one_message_are_no_flood",
            "test_what_*",
            "test_whoever_is_answered_may_send_some_of_each",
        ],
    },
    "http2/test_framing.py": {
        PADDING: ["test_cut_*", "test_padding_and_priority"],
        PING_FLAGS: ["test_flags_that_mean_nothing_are_ignored"],
        GOAWAY_CODE: ["test_a_server_stops_though_its_ping_is_not_answered"],
        LATE_CALLS: ["test_how_a_server_stops"],
    },
    "http2/test_skipped_streams.py": {CLOSED: ["test_headers_of_a_lower_stream"]},
    "http2/test_stream_errors.py": {
        MALFORMED: ["test_malformed_headers", "test_a_request_is_as_long_as_it_says"],
        CLOSED: [
            "test_empty_data_behind_the_end",
            "test_data_of_a_stream_that_its_client_has_closed",
        ],
        REFUSED: ["test_too_many_streams"],
        COMPRESSIONS: ["test_a_connection_says_once_which_compressions_it_takes"],
        WINDOW_OF_0: ["test_data_of_a_stream_that_the_server_has_closed"],
        BEYOND: ["test_more_than_the_windows_of_a_stream"],
        PADDING: ["test_padding_counts_for_the_window"],
    },
    "http2/test_fuzz.py": {TASKS: ["test_nothing_is_left_of_broken_conversations"]},
    "http2/test_strict_peer.py": {PADDING: ["test_random_calls"]},
    "http2/test_windows.py": {
        GRANTS: ["test_a_message_larger_than_the_window_comes_whole_though_nobody_reads"],
    },
    "request/test_compressed_memory.py": {MEMORY: ["test_*"]},
    "request/test_ended_memory.py": {MEMORY: ["test_*"]},
    "request/test_reservations.py": {MEMORY: ["test_*"]},
    "request/test_unfinished.py": {MEMORY: ["test_*"]},
    "request/test_uploads.py": {MEMORY: ["test_*"]},
    "test_idle_streams.py": {
        MESSAGES: ["test_one_that_idles_holds_neither_its_last_request_nor_its_answer"],
    },
    "test_review.py": {
        ERRORS: ["test_a_handler_that_gives_no_bytes_is_told_so"],
        SECOND: ["test_a_second_message_ends_a_unary_call_at_once"],
        FLOODS: ["test_calls_that_are_late_may_be_reset[1H-True]"],
        OURS: [
            "test_an_answer_to_a_slow_reader_outlives_a_stop",
            "test_connections_that_are_over_keep_no_buffers",
        ],
        LOST_CALLS: ["test_a_handshake_that_ends_after_a_stop"],
    },
}
