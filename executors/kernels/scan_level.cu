// Levels of a back-propagation scan over dense transposed Jacobians, one launch per level; simulator.bodies.scan_level defines them.
//
// The caller defines REAL, H (units), TILE (edge of the part of a matrix that a block loads at a time: H, at most 32), PAIRS (products per
// block), VECTORS (matrix-vector products per block), UP_THREADS, THREADS, COPIES (elements per thread) and AHEAD (tiles loaded ahead).
// A batch [m, B, H, H] is a sequence of m B matrices. `count`, `samples` and so on are numbers of matrices or vectors.

typedef long long Index;  // a long batch has more than 2^31 numbers

#define TILES ((H + TILE - 1) / TILE)
#define ROWS 4  // results per thread of a matrix product
#define STRIPS ((TILE + ROWS - 1) / ROWS)
#define PITCH (TILE | 1)  // an odd distance between rows, so that threads that read one column have no bank conflicts

__device__ inline REAL entry(const REAL* __restrict__ matrix, int row, int column)
{
    return TILES == 1 || (row < H && column < H) ? matrix[row * H + column] : REAL(0);
}

// results[n] = left[n] right[n] for `count` pairs of matrices. Block number `block` computes one tile of each of PAIRS results.
__device__ inline void multiply(const REAL* __restrict__ left, const REAL* __restrict__ right, REAL* __restrict__ results, int count,
                                int block, REAL* space)
{
    const int pair = threadIdx.x / (STRIPS * TILE), within = threadIdx.x % (STRIPS * TILE);
    const int strip = within / TILE * ROWS, column = within % TILE;
    const int n = block / (TILES * TILES) * PAIRS + pair;
    const int row0 = block / TILES % TILES * TILE, column0 = block % TILES * TILE;
    const bool live = n < count;
    const Index matrix = Index(n) * (H * H);
    REAL* a = space + pair * (2 * TILE * TILE);
    REAL* b = a + TILE * TILE;
    REAL sums[ROWS] = {};
    for (int k0 = 0; k0 < H; k0 += TILE) {
        if (k0) __syncthreads();
        if (live) {
#pragma unroll
            for (int e = within; e < TILE * TILE; e += STRIPS * TILE) {
                a[e] = entry(left + matrix, row0 + e / TILE, k0 + e % TILE);
                b[e] = entry(right + matrix, k0 + e / TILE, column0 + e % TILE);
            }
        }
        __syncthreads();
        if (live) {
#pragma unroll
            for (int k = 0; k < TILE; k++) {
#pragma unroll
                for (int s = 0; s < ROWS; s++) {
                    const int row = strip + s < TILE ? strip + s : TILE - 1;
                    sums[s] += a[row * TILE + k] * b[k * TILE + column];
                }
            }
        }
    }
    if (live && column0 + column < H) {
#pragma unroll
        for (int s = 0; s < ROWS; s++) {
            if (strip + s < TILE && row0 + strip + s < H) results[matrix + (row0 + strip + s) * H + column0 + column] = sums[s];
        }
    }
}

// results[n] = matrices[n] vectors[n] for `count` pairs. Block number `block` computes TILE entries of each of VECTORS results.
__device__ inline void apply(const REAL* __restrict__ matrices, const REAL* __restrict__ vectors, REAL* __restrict__ results, int count,
                             int block, int threads, REAL* space)
{
    const int first = block / TILES * VECTORS, row0 = block % TILES * TILE;
    const int here = count - first < VECTORS ? count - first : VECTORS;
    const int which = threadIdx.x / TILE, row = threadIdx.x % TILE;
    REAL* held = space + VECTORS * TILE * PITCH;
    REAL sum = 0;
    for (int k0 = 0; k0 < H; k0 += TILE) {
        if (k0) __syncthreads();
#pragma unroll 8
        for (int e = threadIdx.x; e < here * TILE * TILE; e += threads) {
            const int matrix = e / (TILE * TILE), i = e / TILE % TILE, k = e % TILE;
            space[(matrix * TILE + i) * PITCH + k] = entry(matrices + Index(first + matrix) * (H * H), row0 + i, k0 + k);
        }
        for (int e = threadIdx.x; e < here * TILE; e += threads) {
            const int k = k0 + e % TILE;
            held[e] = k < H ? vectors[Index(first + e / TILE) * H + k] : REAL(0);
        }
        __syncthreads();
        if (which < here) {
#pragma unroll
            for (int k = 0; k < TILE; k++) sum += space[(which * TILE + row) * PITCH + k] * held[which * TILE + k];
        }
    }
    if (which < here && row0 + row < H) results[Index(first + which) * H + row0 + row] = sum;
}

#define APPLY_SPACE (VECTORS * TILE * (PITCH + 1))
#define MULTIPLY_SPACE (PAIRS * 2 * TILE * TILE)

// The products of `count` pairs, whose later elements begin at matrix `later`. For a leftmost batch, further blocks multiply the gradient
// by the matrices right before that one.
extern "C" __global__ void __launch_bounds__(UP_THREADS)
schedcast_scan_up(const REAL* __restrict__ jacobians, const REAL* __restrict__ gradient, REAL* __restrict__ products,
                 REAL* __restrict__ first, int count, int later, int samples)
{
    __shared__ __align__(16) REAL space[MULTIPLY_SPACE > APPLY_SPACE ? MULTIPLY_SPACE : APPLY_SPACE];
    const int blocks = (count + PAIRS - 1) / PAIRS * (TILES * TILES);
    const int block = blockIdx.x;
    if (block < blocks) {
        multiply(jacobians + Index(later) * (H * H), jacobians, products, count, block, space);
    } else {
        apply(jacobians + Index(later - samples) * (H * H), gradient, first, samples, block - blocks, UP_THREADS, space);
    }
}

// Concatenates the first `moved` vectors of `above`, `first` vectors of the gradient, `count` products of the Jacobians with vectors of
// `above`, and the `last` remaining vectors of `above`.
extern "C" __global__ void __launch_bounds__(THREADS)
schedcast_scan_down(const REAL* __restrict__ jacobians, const REAL* __restrict__ above, const REAL* __restrict__ gradient,
                   REAL* __restrict__ prefixes, int count, int moved, int first, int last)
{
    __shared__ REAL space[APPLY_SPACE];
    const int blocks = (count + VECTORS - 1) / VECTORS * TILES;
    const int block = blockIdx.x;
    if (block < blocks) {
        apply(jacobians, above, prefixes + Index(moved + first) * H, count, block, THREADS, space);
        return;
    }
    const Index to_gradient = Index(moved) * H, to_last = Index(moved + first) * H, end = Index(moved + first + last) * H;
    for (int copy = 0; copy < COPIES; copy++) {
        const Index e = (Index(block - blocks) * COPIES + copy) * THREADS + threadIdx.x;
        if (e >= end) return;
        if (e < to_gradient) prefixes[e] = above[e];
        else if (e < to_last) prefixes[e] = gradient[e - to_gradient];
        else prefixes[e + Index(count) * H] = above[e - Index(first) * H];
    }
}

// Every prefix, with one block per sample. The vector stays in shared memory. The tiles of the matrices are loaded AHEAD at a time, during
// the products with the previous ones. `places` [2 steps + 1]: the position of each successive matrix, then of each successive prefix.
extern "C" __global__ void __launch_bounds__(THREADS)
schedcast_scan_linear(const REAL* __restrict__ jacobians, const REAL* __restrict__ gradient, const int* __restrict__ places,
                     REAL* __restrict__ prefixes, int steps, int samples)
{
    enum { PER_STEP = TILES * TILES, HELD = (AHEAD * TILE * TILE + THREADS - 1) / THREADS };
    __shared__ REAL tiles[2][AHEAD * TILE * PITCH];
    __shared__ REAL vectors[2][TILES * TILE];
    __shared__ int from[3][AHEAD], to[3][AHEAD];  // of the current stage, the next one, and the one after it, whose positions are being loaded
    const int me = threadIdx.x, sample = blockIdx.x, total = steps * PER_STEP;
    const Index matrix = Index(samples) * (H * H), vector = Index(samples) * H;
    jacobians += Index(sample) * (H * H);
    prefixes += Index(sample) * H;

    for (int e = me; e < TILES * TILE; e += THREADS) {
        const REAL number = e < H ? gradient[Index(sample) * H + e] : REAL(0);
        vectors[0][e] = number;
        vectors[1][e] = 0;
        if (e < H) prefixes[places[steps] * vector + e] = number;
    }
    for (int e = me; e < 2 * AHEAD; e += THREADS) {
        const int step = e / PER_STEP < steps ? e / PER_STEP : steps - 1;
        from[e / AHEAD][e % AHEAD] = places[step];
        to[e / AHEAD][e % AHEAD] = places[steps + 1 + step];
    }
    __syncthreads();

    REAL held[HELD], sum = 0;
    int now = 0;  // which of `vectors` holds the factor of the current product
    for (int stage = -1; stage < 0 || stage * AHEAD < total; stage++) {
        const int next = stage + 1;
#pragma unroll
        for (int h = 0; h < HELD; h++) {  // these loads overlap with the products below
            const int e = me + h * THREADS, ahead = e / (TILE * TILE), tile = next * AHEAD + ahead;
            if (ahead < AHEAD && tile < total) {
                const int row0 = tile / TILES % TILES * TILE, column0 = tile % TILES * TILE;
                held[h] = entry(jacobians + from[next % 3][ahead] * matrix, row0 + e / TILE % TILE, column0 + e % TILE);
            }
        }
        int coming_from = 0, coming_to = 0;
        if (me < AHEAD) {
            const int tile = (stage + 2) * AHEAD + me, step = tile / PER_STEP < steps ? tile / PER_STEP : steps - 1;
            coming_from = places[step];
            coming_to = places[steps + 1 + step];
        }
        for (int ahead = 0; stage >= 0 && ahead < AHEAD; ahead++) {
            const int tile = stage * AHEAD + ahead, row0 = tile / TILES % TILES * TILE, column0 = tile % TILES * TILE;
            if (tile >= total) break;
            if (me < TILE) {
                const REAL* mine = tiles[stage % 2] + (ahead * TILE + me) * PITCH;
                REAL parts[4] = {};  // four independent sums, for shorter dependency chains
#pragma unroll
                for (int k = 0; k < TILE; k++) parts[k % 4] += mine[k] * vectors[now][column0 + k];
                sum += (parts[0] + parts[1]) + (parts[2] + parts[3]);
                if (column0 + TILE >= H) {
                    vectors[1 - now][row0 + me] = sum;
                    if (row0 + me < H) prefixes[to[stage % 3][ahead] * vector + row0 + me] = sum;
                    sum = 0;
                }
            }
            if (tile % PER_STEP == PER_STEP - 1) {
                __syncthreads();
                now = 1 - now;
            }
        }
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int e = me + h * THREADS, ahead = e / (TILE * TILE);
            if (ahead < AHEAD && next * AHEAD + ahead < total) tiles[next % 2][(e / TILE) * PITCH + e % TILE] = held[h];
        }
        if (me < AHEAD) {
            from[(stage + 2) % 3][me] = coming_from;
            to[(stage + 2) % 3][me] = coming_to;
        }
        __syncthreads();
    }
}
