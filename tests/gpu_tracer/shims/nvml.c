/* A driver's library as the tests need it: two GPUs, one of them with two MIG parts if it is told so.

   NVML_SHIM names a file of lines `name=value`, read at each call, so that a test can change the state while a process
   runs. A line with the name of a function makes it fail with that number; the others are:
   order=1 counts the GPUs the other way round; mig=1 divides the second; gpus, processes, pid (of the first process),
   uncorrected, remapped and mig_pending are what they say.
   -DOLD leaves out what older drivers do not have. */

#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;
typedef struct { u32 pid; u64 used; u32 gpu, compute; } Process;
typedef struct { int number; int part; } Device;

enum { INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7, OTHER_VERSION = 25 };
static Device gpus[2] = {{0, -1}, {1, -1}};
static Device parts[2] = {{1, 0}, {1, 1}};
static pid_t ready; /* the process that has initialised it: of no use to its children */

static long state(const char *name, long otherwise) {
    const char *path = getenv("NVML_SHIM");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[128];
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == '=')
            otherwise = atol(line + length + 1);
    if (file) fclose(file);
    return otherwise;
}

#define BEGIN do { long bad = state(__func__, ready == getpid() ? 0 : 1); if (bad) return (int)bad; } while (0)

static int say(char *out, u32 room, const char *text) {
    if (strlen(text) >= room) return TOO_SMALL;
    strcpy(out, text);
    return 0;
}

int nvmlInit_v2(void) { ready = getpid(); BEGIN; return 0; }
int nvmlShutdown(void) { BEGIN; ready = 0; return 0; }
int nvmlSystemGetDriverVersion(char *out, u32 room) { BEGIN; return say(out, room, "570.86.15"); }
int nvmlSystemGetNVMLVersion(char *out, u32 room) { BEGIN; return say(out, room, "12.570.86.15"); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { BEGIN; *out = 12080; return 0; }
int nvmlDeviceGetCount_v2(u32 *out) { BEGIN; *out = (u32)state("gpus", 2); return 0; }

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **out) {
    BEGIN;
    if (index > 1) return INVALID;
    *out = &gpus[state("order", 0) ? 1 - index : index];
    return 0;
}

int nvmlDeviceGetName(Device *device, char *out, u32 room) {
    BEGIN;
    return say(out, room, device->part < 0 ? "NVIDIA Shim 80GB" : "NVIDIA Shim 80GB MIG 3g.40gb");
}

int nvmlDeviceGetUUID(Device *device, char *out, u32 room) {
    static const char *whole[2] = {
        "GPU-11111111-aaaa-4bbb-8ccc-000000000001", "GPU-22222222-aaaa-4bbb-8ccc-000000000002"};
    static const char *part[2] = {
        "MIG-33333333-aaaa-5bbb-8ccc-000000000003", "MIG-44444444-aaaa-5bbb-8ccc-000000000004"};
    BEGIN;
    return say(out, room, device->part < 0 ? whole[device->number] : part[device->part]);
}

static u64 size_of(Device *device) { return (device->part < 0 ? 80ull : 40ull) << 30; }

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *out) {
    BEGIN;
    if (out->version != (sizeof *out | 2u << 24)) return OTHER_VERSION;
    out->total = size_of(device);
    out->reserved = 512ull << 20;
    out->used = (u64)(device->number + 1) << 30;
    out->free = out->total - out->reserved - out->used;
    return 0;
}
#endif

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    BEGIN;
    out->total = size_of(device);
    out->used = ((u64)(device->number + 1) << 30) + (512ull << 20);
    out->free = out->total - out->used;
    return 0;
}

static int listed(Device *device, u32 *count, Process *out, long pid, u32 processes) {
    if (*count < processes) { *count = processes; return TOO_SMALL; }
    *count = processes;
    for (u32 n = 0; n < processes; n++)
        out[n] = (Process){(u32)pid + n, n ? ~0ull : 1ull << 30, device->part < 0 ? ~0u : (u32)device->part + 1,
                           device->part < 0 ? ~0u : 0};
    return 0;
}

#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, u32 *count, Process *out) {
    BEGIN;
    return listed(device, count, out, state("pid", 4711), (u32)state("processes", 2));
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, u32 *count, Process *out) {
    BEGIN;
    return listed(device, count, out, 1, 0);
}
#else
int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, u32 *count, Process *out) {
    BEGIN;
    return listed(device, count, out, 99, 1);
}
#endif

int nvmlDeviceGetMigMode(Device *device, u32 *now, u32 *pending) {
    BEGIN;
    *now = device->number == 1 && state("mig", 0);
    *pending = *now || state("mig_pending", 0);
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, u32 *out) { BEGIN; *out = 7; return device ? 0 : INVALID; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, u32 index, Device **out) {
    BEGIN;
    if (device->number != 1 || index % 2 || index > 2) return NOT_FOUND;
    *out = &parts[index / 2];
    return 0;
}

int nvmlDeviceGetGpuInstanceId(Device *device, u32 *out) { BEGIN; *out = (u32)device->part + 1; return 0; }
int nvmlDeviceGetComputeInstanceId(Device *device, u32 *out) { BEGIN; *out = 0; return device ? 0 : INVALID; }

int nvmlDeviceGetEccMode(Device *device, u32 *now, u32 *pending) {
    BEGIN;
    *now = *pending = 1;
    return device ? 0 : INVALID;
}

int nvmlDeviceGetTotalEccErrors(Device *device, u32 type, u32 counter, u64 *out) {
    BEGIN;
    if (type > 1 || counter > 1) return INVALID;
    *out = type ? (u64)state("uncorrected", 0) : 5u + device->number;
    if (counter) *out += 100;
    return 0;
}

int nvmlDeviceGetRemappedRows(Device *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    BEGIN;
    *corrected = 3;
    *uncorrected = (u32)state("remapped", 0);
    *pending = *uncorrected > 0;
    *failed = 0;
    return device ? 0 : INVALID;
}

int nvmlDeviceGetClockInfo(Device *device, u32 which, u32 *out) {
    BEGIN;
    if (which != 1 && which != 2) return INVALID;
    *out = which == 1 ? 1755 : 2619;
    return device ? 0 : INVALID;
}

int nvmlDeviceGetMaxClockInfo(Device *device, u32 which, u32 *out) {
    BEGIN;
    *out = which == 1 ? 1980 : 0;
    return device ? 0 : INVALID;
}

#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, u64 *out) {
    BEGIN;
    *out = 0x4 | 0x40 | 0x8000;
    return device ? 0 : INVALID;
}
#else
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, u64 *out) {
    BEGIN;
    *out = 0x1;
    return device ? 0 : INVALID;
}
#endif
