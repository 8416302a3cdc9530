"""Slurm's own error texts, sorted by what they prove. Source: slurm_errno.c of 22.05.8 and of 26.05.

Codes cannot be used: sbatch prints only the text of its errno.
"""

from __future__ import annotations

# sbatch found no controller that takes a connection. In slurm_protocol_api.c (read: 22.05 lineage and 24.11 lineage)
# _open_controller() is the only place that sets it, before _send_and_recv_msg() is reached; the loops that come back
# to it (standby, rate limit, reroute) had an answer that no job was made. So nothing that makes a job was ever sent.
CONNECT_FAILURE = "Unable to contact slurm controller (connect failure)"

# Something was sent, or may have been, and no answer was understood: SLURM_COMMUNICATIONS_*, SLURM_PROTOCOL_*,
# SLURMCTLD_COMMUNICATIONS_*, and the authentication of the reply. What the controller did is not known.
COMMUNICATION = (
    "Socket timed out on send/recv operation",
    "Unable to contact slurm controller",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
    "Communication connection failure",
    "Message send failure",
    "Message receive failure",
    "Communication shutdown failure",
    "Incompatible versions of client and server code",
    "I/O stream version number error",
    "Protocol authentication error",
    "Insane message length",
    "Unexpected missing socket error",
    "Unable to process incoming file descriptor",
    "Unable to process outgoing file descriptor",
    "Unable to process incoming and outgoing file descriptors",
    "Read would block",
    "Write would block",
    "Connection rejected by handler",
    "Connection forced closed by quiesce timeout",
    "Connection timed out",  # errno, and "Connection timed out establishing / writing / reading" from 25.05
    "Kernel reported delayed socket error",
    "Process is shutting down and closing all communications",
    "Rate limit exceeded",
    "Header lengths are longer than data received",
    "Received zero length message",
    "Received message length < 0",
    "Failed to send entire message",
    "Invalid authentication credential",
    "Authentication credential expired",
    "Cannot unpack credential",
    "TLS missing but required for connection",
    "Slurm backup controller in standby mode",
    "Controller is in standby mode",
    "Slurm controller not responding",  # sbatch retried by itself after ETIMEDOUT
    "Munge encode failed",
    "Munge decode failed",
    # errno texts (glibc) of a connection that broke
    "Connection refused",
    "Connection reset",
    "Connection aborted",
    "Connection closed",
    "Broken pipe",
    "No route to host",
    "Network is unreachable",
    "Network is down",
    "Host is down",
    "Transport endpoint is not connected",
    "Resource temporarily unavailable",
    "Interrupted system call",
    "Input/output error",
    "Bad file descriptor",
    "Operation now in progress",
    "Operation timed out",
)

# `sbatch: error: Batch job submission failed: TEXT` with one of these is the controller's answer: there is no job.
REFUSALS = frozenset(
    line.strip()
    for line in """
    Access denied to requested reservation
    Access/permission denied
    Burst Buffer permission denied
    Burst Buffer request invalid
    Burst Buffer resource limit exceeded
    CPU count specification invalid
    Cannot request more threads per core than the job allocation
    Circular job dependency
    Container support is not configured
    Core count for reservation node list is not consistent!
    Duplicate generic resource (gres) specification
    Duplicate job id
    Environment is missing in job
    Error generating job credential
    I/O error writing script/environment to file
    Immediate execution impossible, insufficient priority
    Insufficient GRES available in allocation
    Invalid --nice value
    Invalid GRES specification (with and without type identification)
    Invalid QOS specification, relative QOS can only be used in a single partition per cluster.
    Invalid Trackable RESource (TRES) specification
    Invalid account or account/partition combination specified
    Invalid cluster feature specification
    Invalid cluster name
    Invalid container id specified
    Invalid extra constraints specification
    Invalid feature specification
    Invalid generic resource (gres) specification
    Invalid group ID
    Invalid group id
    Invalid job array specification
    Invalid job credential
    Invalid job id specified
    Invalid license specification
    Invalid mcs_label specified
    Invalid node name specified
    Invalid or unknown association
    Invalid partition name specified
    Invalid preferred feature specification
    Invalid qos specification
    Invalid time specified
    Invalid time-min specification (exceeds job's time or other limits)
    Invalid user ID
    Invalid user id
    Invalid wckey specification
    Job --batch option is invalid or not a subset of --constraint
    Job can not start due to maintenance reservation.
    Job can not start immediately
    Job cannot be submitted without the current working directory specified.
    Job dependency problem
    Job script not specified
    Job size specification needs to be provided
    Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)
    Licenses currently unavailable
    Max powered up nodes reached
    MaxJobCount limit reached
    Memory required by task is not available
    More processors requested than permitted
    Multiple KNL NUMA and/or MCDRAM constraints require use of a heterogeneous job
    Multiple partition job request not supported when a partition is set in the association
    No eligible clusters for federated job
    No partition specified or system default partition
    Node count specification invalid
    Only batch jobs are accepted or processed
    Partition in DOWN state
    Pathname of a file, directory or other parameter too long
    Preemption is required but is disabled on this system
    Rejecting authentication of user nobody or group nobody
    Requested GRES option unsupported by configured SelectType plugin
    Requested account has breached requested QOS usage threshold
    Requested more tasks than available processors
    Requested node configuration is not available
    Requested nodes are busy
    Requested nodes not in this partition
    Requested operation is presently disabled
    Requested operation not supported on this system
    Requested partition configuration not available now
    Requested reservation is in use
    Requested reservation is invalid
    Requested reservation not usable now
    Requested time limit is invalid (missing or exceeds some limit)
    Requested topology configuration is not available
    Required node not available (down, drained or reserved)
    Required partition not available (inactive or drain)
    RestrictedCoresPerGPU: Missing core topology for GPUs
    RestrictedCoresPerGPU: No GPUs configured on node
    RestrictedCoresPerGPU: Not enough unique cores per GPU
    Slurm internal error, contact system administrator
    System submissions disabled
    Task count specification invalid
    Task distribution specification invalid
    Time limit specification required, but not provided
    Unable to create job record, try again
    Unable to resolve group ID to group name
    Unable to resolve user ID to user name
    User's group not permitted to use this partition
    X11 forwarding not available
    """.strip().splitlines()
)
