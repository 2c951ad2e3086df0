// Echoes, or asks one that echoes, on many connections at once, in Node.js.

const net = require("net");
const [, , role, port] = process.argv;
const at = { host: "127.0.0.1", port: Number(port), allowHalfOpen: true };

function block(number, turn) {
  const length = [1, 7, 1000, 60000][(number + turn * 7) % 4];
  return Buffer.alloc(length, `${number}/${turn},`);
}

function ask(number, done) {
  const sent = [];
  const back = [];
  const socket = net.connect(at, () => socket.write("hello"));
  socket.once("data", (hello) => {
    const send = (turn) => {
      if (turn === 30) return socket.end();
      sent.push(block(number, turn));
      socket.write(sent[turn], () => send(turn + 1));
    };
    socket.on("data", (bytes) => back.push(bytes));
    if (hello.toString() === "hello") send(0);
  });
  socket.on("end", () => done(Buffer.concat(sent).equals(Buffer.concat(back))));
}

if (role === "serve") {
  net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(at);
} else {
  let [right, left] = [0, 20];
  for (let number = 0; number < 20; number += 1) {
    ask(number, (same) => {
      right += same ? 1 : 0;
      left -= 1;
      if (left === 0) console.log(`right: ${right}`);
    });
  }
}
