"""Sentences in scripts other than ASCII, to be shuffled into text of any length.

Written for this project. Shuffled sentences keep the tokens per character of real text, which
random characters of the same script would not.
"""

from __future__ import annotations

SENTENCES: tuple[str, ...] = (
    "请先运行所有的测试，然后再提交这次修改。",
    "这个函数在输入为空的时候会返回错误的结果，我们需要加一个检查。",
    "服务器的日志显示连接在三十秒之后被重置了。",
    "把配置文件里的超时时间改成六十秒，再试一次。",
    "缓存没有命中，因为系统提示词的开头每次都不一样。",
    "数据库迁移已经完成，但是索引还没有重新建立。",
    "この関数は空のリストを渡すと例外を投げるので、先に長さを確認してください。",
    "テストが二つ失敗しています。ログを読んで原因を教えてください。",
    "設定ファイルの書き方が古いままなので、新しい形式に直しました。",
    "キャッシュの期限が切れる前に、もう一度だけ要求を送ります。",
    "서버가 응답하지 않으면 연결을 끊고 다시 시도해 주세요.",
    "이 변경 사항은 아직 검토를 받지 않았습니다.",
    "테스트를 모두 통과했지만 속도가 조금 느려졌습니다.",
    "Сначала запусти все тесты, а потом отправь изменения.",
    "Ошибка возникает только тогда, когда список пуст.",
    "Соединение было разорвано через тридцать секунд после запроса.",
    "Нужно переименовать переменную, чтобы код было легче читать.",
    "Prüfe bitte zuerst die Größe der Datei und ändere dann die Übergabe.",
    "Die Änderung läuft, aber die Prüfung schlägt für Schlüssel mit Umlauten fehl.",
    "Vérifie d'abord que le fichier a été créé, puis relance la tâche échouée.",
    "La connexion a été fermée à cause d'un délai dépassé côté serveur.",
    "La función devuelve un valor erróneo cuando la petición está vacía.",
    "Uruchom najpierw wszystkie testy, a potem wyślij zmiany do przeglądu.",
    "Ο έλεγχος αποτυγχάνει όταν το αρχείο δεν υπάρχει.",
    "يرجى تشغيل جميع الاختبارات قبل إرسال التغيير.",
    "कृपया पहले सभी परीक्षण चलाएँ और फिर बदलाव भेजें।",
    "✅ 完了 🚀 デプロイ成功 · ⚠️ 2 件の警告",
    "→ résumé: naïve café, œuvre, façade — “quoted” … 100 µs ± 5 %",
)
